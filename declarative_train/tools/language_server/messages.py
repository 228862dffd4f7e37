"""Diagnostics as messages of the language server protocol, by file, and their fixes as code actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types
from pygls.uris import from_fs_path
from pygls.workspace import PositionCodec

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Severity
from declarative_train.core.diagnostics.fixes import apply_fixes
from declarative_train.core.span import Span
from declarative_train.tools.language_server.analysis import Analysis
from declarative_train.tools.language_server.places import Places
from declarative_train.tools.language_server.symbols import NAME, Entry, Occurrence

SOURCE = "dtrain"
SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.UNVERIFIED: types.DiagnosticSeverity.Information,
}
SYMBOL_KINDS = {
    "block": types.SymbolKind.Class,
    "field": types.SymbolKind.Field,
    "metric": types.SymbolKind.Number,
    "node": types.SymbolKind.Variable,
    "set": types.SymbolKind.Array,
    "term": types.SymbolKind.Function,
    "var": types.SymbolKind.Constant,
}
FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.{SOURCE}"


class Messages:
    """Converter of the diagnostics of one analysis to messages of the protocol, and of their fixes to code actions.
    `uri`: address of the recipe."""

    def __init__(self, uri: str, analysis: Analysis, codec: PositionCodec) -> None:
        self.uri = uri
        self.analysis = analysis
        self._places = {path: Places(path, text, codec) for path, text in analysis.texts.items()}

    def by_file(self, diagnostics: tuple[Diagnostic, ...]) -> dict[str, list[types.Diagnostic]]:
        """Return a dict from the address of a file to its messages. The recipe's own address is always a key. A
        diagnostic without a file is shown at the beginning of the recipe."""
        found: dict[str, list[types.Diagnostic]] = {self.uri: []}
        for each in diagnostics:
            found.setdefault(self.address(each.span.path) or self.uri, []).append(self.message(each))
        return found

    def address(self, path: str) -> str | None:
        """Return the address of a file, or None for a path that an editor cannot open, such as the name of a `--set`
        option."""
        if path == self.analysis.path:
            return self.uri
        return from_fs_path(str(Path(path).absolute())) if Path(path).is_file() else None

    def range(self, span: Span) -> types.Range:
        if span.path not in self._places or self.address(span.path) is None:
            return types.Range(start=types.Position(0, 0), end=types.Position(0, 0))
        return self._places[span.path].range(span)

    def message(self, diagnostic: Diagnostic) -> types.Diagnostic:
        text = diagnostic.message if diagnostic.help is None else f"{diagnostic.message}\nhelp: {diagnostic.help}"
        if self.address(diagnostic.span.path) is None:
            text = f"{diagnostic.span}: {text}"
        related = [
            types.DiagnosticRelatedInformation(types.Location(address, self.range(each.span)), each.message)
            for each in diagnostic.related
            if (address := self.address(each.span.path)) is not None
        ]
        return types.Diagnostic(
            range=self.range(diagnostic.span),
            message=text,
            severity=SEVERITIES[diagnostic.severity],
            code=diagnostic.code,
            source=SOURCE,
            related_information=related or None,
        )

    def actions(self, asked: types.Range, only: list[str] | None) -> Iterator[types.CodeAction]:
        """Yield a quick fix for each diagnostic in the range `asked` that has a fix, and one action with all safe fixes
        of the file. `only`: the kinds of actions that the editor wants, "quick fix", "fix all" or both; None: only
        quick fixes."""
        wanted = tuple(only or ())
        if not wanted or any(types.CodeActionKind.QuickFix.value.startswith(each) for each in wanted):
            for each in self.analysis.diagnostics:
                if each.fixes and each.span.path == self.analysis.path and _meet(self.range(each.span), asked):
                    yield self._quick_fix(each)
        if any(FIX_ALL.startswith(each) for each in wanted):
            yield from self._fix_all()

    def _quick_fix(self, diagnostic: Diagnostic) -> types.CodeAction:
        changes: dict[str, list[types.TextEdit]] = {}
        for fix in diagnostic.fixes:
            edit = types.TextEdit(self.range(fix.span), fix.replacement)
            changes.setdefault(self.address(fix.span.path) or self.uri, []).append(edit)
        return types.CodeAction(
            title=self._title(diagnostic),
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[self.message(diagnostic)],
            is_preferred=all(fix.safe for fix in diagnostic.fixes),
            edit=types.WorkspaceEdit(changes=changes),
        )

    def _title(self, diagnostic: Diagnostic) -> str:
        changes = not all(fix.safe for fix in diagnostic.fixes)
        title = " and ".join(self._words(fix) for fix in diagnostic.fixes)
        return f"{title} (may change the plan)" if changes else title

    def _words(self, fix: Fix) -> str:
        lines = self._places[fix.span.path].lines
        start = lines.offset(fix.span.line, fix.span.column)
        old = lines.text[start : lines.offset(fix.span.end_line, fix.span.end_column)].strip()
        new = fix.replacement.strip()
        if not new:
            return f"remove `{_short(old)}`"
        return f"replace `{_short(old)}` by `{_short(new)}`" if old else f"insert `{_short(new)}`"

    def _fix_all(self) -> Iterator[types.CodeAction]:
        path = self.analysis.path
        fixed = apply_fixes(self.analysis.diagnostics, {path: self.analysis.text})
        if path in fixed.texts:
            edit = types.TextEdit(self._places[path].whole(), fixed.texts[path])
            yield types.CodeAction(
                title=f"apply all safe fixes ({fixed.count})",
                kind=FIX_ALL,
                edit=types.WorkspaceEdit(changes={self.uri: [edit]}),
            )


@dataclass(frozen=True, slots=True)
class NamesAt:
    """The symbol at a position of a recipe, and where it occurs. `here`: its occurrence at this position. `found`: all
    its occurrences. `everything`: the occurrences of all symbols in the recipe."""

    messages: Messages
    here: Occurrence
    found: list[Occurrence]
    everything: list[Occurrence]

    @property
    def range(self) -> types.Range:
        return self.messages.range(self.here.span)

    def locations(self, *, definitions: bool, uses: bool) -> list[types.Location]:
        chosen = [each for each in self.found if (definitions if each.is_definition else uses)]
        places = ((self.messages.address(each.span.path), self.messages.range(each.span)) for each in chosen)
        return [types.Location(address, place) for address, place in places if address is not None]

    def rename(self, name: str) -> types.WorkspaceEdit:
        """Return the edit that renames the symbol to `name` in all files. Raises ValueError if this is not possible."""
        symbol = self.here.symbol
        if not NAME.match(name):
            raise ValueError(f"`{name}` is not a name: it needs letters, digits and _")
        if any(each.symbol == symbol._replace(name=name) for each in self.everything):
            raise ValueError(f"there is a {symbol.kind} `{name}` already")
        changes: dict[str, list[types.TextEdit]] = {}
        for each in self.found:
            address = self.messages.address(each.span.path)
            if address is None:
                raise ValueError(f"`{symbol.name}` is also in {each.span.path}, which is not a file to edit")
            changes.setdefault(address, []).append(types.TextEdit(self.messages.range(each.span), name))
        return types.WorkspaceEdit(changes=changes)


def make_symbol(messages: Messages, entry: Entry) -> types.DocumentSymbol:
    """Convert an entry of the outline to a DocumentSymbol of the protocol."""
    inner = [make_symbol(messages, each) for each in entry.inner]
    kind = SYMBOL_KINDS.get(entry.kind, types.SymbolKind.Namespace)
    whole, name = messages.range(entry.span), messages.range(entry.name_span)
    detail = "" if entry.kind == "section" else entry.kind
    return types.DocumentSymbol(entry.name, kind, whole, name, detail=detail, children=inner)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else f"{line[:37]}..."


def _meet(one: types.Range, other: types.Range) -> bool:
    def key(place: types.Position) -> tuple[int, int]:
        return place.line, place.character

    return key(one.start) <= key(other.end) and key(other.start) <= key(one.end)
