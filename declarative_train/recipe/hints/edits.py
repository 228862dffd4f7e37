"""Edits that may correct a mistake in a recipe: small changes near the place of a diagnostic.

Most of the edits are wrong: `app/api/tried_fixes.py` applies each one, lints the result and keeps those that help.
Edits that keep everything that the user typed come first, edits that remove something last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.recipe.hints.aliases import KEYS
from declarative_train.recipe.hints.key_places import find_sections_with
from declarative_train.source.node import Mapping, Node, Scalar, Sequence, find
from declarative_train.source.reader import read_text

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(r"`([^`]+)`")
_LISTED = re.compile(r"(?:known|expected one of):? (\w+(?:, \w+)*)")
_PAIR = re.compile(r"\w+: ")
_SETTING = re.compile(r"set ([a-z_.]+) to (\w+)(?: or (\w+))?")
_UNITS = ("epochs", "steps")
_NAMES_OF = (("model", "graph"), ("data", "fields"))
_NEAR = 8  # number of lines above and below whose indentation is proposed
_CLOSERS = {"[": "]", "{": "}"}
_TYPED = (  # (typing error, its correction)
    (re.compile(r"(?<=\w)\s*[=;]\s*(?=[\w\"'\[{-])"), ": "),
    (re.compile(r"(?<=\w)[=;](?=\s|$)"), ":"),
    (re.compile(r"(?<=\w) (?=[\w\"'\[{.-])"), ": "),
    (re.compile(r"(?<=[\w\]}\"'])\s*[;.]\s+(?=\w+:)"), ", "),
    (re.compile(r"(?<=[\w\]}\"'])\s+(?=[\w.]+\s*:)"), ", "),
    (re.compile(r"(?<=[\w\]}\"'])[;.]?\s+(?=[\w\"'{\[])"), ", "),
    (re.compile(r"(?<=\d),(?=\d)"), "."),
)

Edit = tuple[int, int, str]  # offsets of the text to replace, and its replacement
Proposal = tuple[Edit, ...]


class _Entry(NamedTuple):
    """Entry of a mapping in the text. `path`: keys from the root to this entry. `key`, `value`: (start, end) offsets of
    the key and of the value in the text. `node`: the value. `parent`: the mapping.
    """

    path: tuple[str, ...]
    key: tuple[int, int]
    value: tuple[int, int]
    node: Node
    parent: Mapping


def propose(diagnostic: Diagnostic, text: str) -> Iterator[Proposal]:
    """Yield edits of `text`, the file in which the diagnostic is, that may correct the reported mistake."""
    site = _Site(diagnostic, text)
    yield from site.unite()
    yield from site.follow_message()
    if diagnostic.code.startswith("Y"):
        yield from site.retype()
    else:
        yield from site.change_value()
        yield from site.change_size()
        yield from site.move()
    yield from site.indent()
    yield from site.remove()


class _Site:
    """Place of a diagnostic in the text of a recipe. `entry`: the innermost entry (key and value) of the text at that
    place. Each public method yields edits that may correct one kind of mistake."""

    def __init__(self, diagnostic: Diagnostic, text: str) -> None:
        self.diagnostic, self.text = diagnostic, text
        self.lines = Lines(diagnostic.span.path, text)
        self.at = self.lines.offset(diagnostic.span.line, diagnostic.span.column)
        root, _ = read_text(diagnostic.span.path, text)
        self.root = root if isinstance(root, Mapping) else None
        self.entries = list(self._entries(root, ())) if root is not None else []
        around = [each for each in self.entries if each.key[0] <= self.at < max(each.value[1], each.key[1])]
        self.entry = around[-1] if around else None

    def _offsets(self, node: Node) -> tuple[int, int]:
        span = node.span
        return self.lines.offset(span.line, span.column), self.lines.offset(span.end_line, span.end_column)

    def _entries(self, node: Node, path: tuple[str, ...]) -> Iterator[_Entry]:
        if isinstance(node, Sequence):
            for item in node.items:
                yield from self._entries(item, path)
        elif isinstance(node, Mapping):
            for each in node:
                value = self._offsets(each.value)
                if value[0] < self._offsets(each.key)[0]:
                    continue  # an alias: the text of its value is at an anchor above
                yield _Entry((*path, each.name), self._offsets(each.key), value, each.value, node)
                yield from self._entries(each.value, (*path, each.name))

    def _siblings(self, entry: _Entry) -> list[_Entry]:
        return [each for each in self.entries if each.parent is entry.parent and each is not entry]

    def _read(self, entry: _Entry) -> str:
        return self.text[entry.value[0] : entry.value[1]]

    # --- words of the message -----------------------------------------------------------------------------------

    def follow_message(self) -> Iterator[Proposal]:
        """Yield edits that do what the help of the diagnostic says, such as "write `gpus: 2`" or "known: a, b". If the
        message names a node or field, also yield edits that write this name in place of another node or field."""
        hint = self.diagnostic.help or ""
        for path, *values in _SETTING.findall(hint):
            for entry in self.entries:
                if entry.path[-path.count(".") - 1 :] == tuple(path.split(".")):
                    yield from (((*entry.value, value),) for value in values if value)
        if self.entry is None:
            return
        words = [each for each in _QUOTED.findall(hint) if "..." not in each]
        if self.entry.key[0] != self.at and (listed := _LISTED.search(hint)) is not None:
            words += listed[1].split(", ")
        for word in words:
            if _PAIR.match(word):
                yield ((self.entry.key[0], self.entry.value[1], word),)
            elif self.entry.key[0] == self.at:
                yield ((*self.entry.key, word),)
            else:
                yield ((*self.entry.value, word),)
        names = set(self._list_names())
        for name in names.intersection(_QUOTED.findall(self.diagnostic.message)):  # a name that should be used
            for entry in reversed(self.entries):
                if isinstance(entry.node, Scalar) and entry.node.text in names - {name}:
                    yield ((*entry.value, name),)

    def change_size(self) -> Iterator[Proposal]:
        """Yield edits for a diagnostic that names several numbers, such as two sizes that should be equal. Each edit
        replaces one of these numbers in the recipe by another."""
        numbers = list(dict.fromkeys(_NUMBER.findall(f"{self.diagnostic.message} {self.diagnostic.help or ''}")))
        equal = [each for each in self.entries if isinstance(each.node, Scalar) and each.node.text in numbers]
        for entry in sorted(equal, key=lambda each: abs(each.key[0] - self.at))[:_NEAR]:
            yield from (((*entry.value, number),) for number in numbers if number != self._read(entry))

    # --- values -------------------------------------------------------------------------------------------------

    def change_value(self) -> Iterator[Proposal]:
        """Yield edits that replace the value at the place of the diagnostic: by the same value in another form or unit,
        by the name of a node or field, or by the value of a neighbouring key (swapped). If the diagnostic reports a
        missing key, also yield edits that add this key."""
        for missing in re.findall(r"needs `(\w+)`", self.diagnostic.message)[:1]:
            yield from self._missing(missing)
        if self.entry is None:
            return
        for entry in self._enclose()[:2]:
            yield from (((*entry.value, form),) for form in self._reshape(entry))
        others = [each for each in self._siblings(self.entry) if isinstance(each.node, Scalar)]
        if isinstance(self.entry.node, Scalar):
            for other in others:
                yield (*self.entry.value, self._read(other)), (*other.value, self._read(self.entry))
            yield from self._rename(self.entry)

    def _reshape(self, entry: _Entry) -> Iterator[str]:
        node, typed = entry.node, self._read(entry)
        if isinstance(node, Sequence) and typed.startswith("["):
            if len(node.items) == 1:
                yield self.text[slice(*self._offsets(node.items[0]))]
            if node.items and all(isinstance(each, Mapping) for each in node.items):
                inner = [self.text[slice(*self._offsets(each))].strip("{} ") for each in node.items]
                yield f"{{{', '.join(inner)}}}"
        elif isinstance(node, Mapping) and typed.startswith("{") and len(node.entries) == 1:
            yield self.text[slice(*self._offsets(node.entries[0].value))]
        elif isinstance(node, Scalar) and typed:
            number = _NUMBER.search(node.text)
            if number is not None:
                if number[0] != node.text:
                    yield number[0]
                units = sorted(_UNITS, key=lambda unit: -self.text.count(unit))
                yield from (f"{number[0]} {unit[:-1] if number[0] == '1' else unit}" for unit in units)
                if number[0].isdigit():
                    yield f"{int(number[0]) / 100:g}"
            if node.text.endswith(("}", "]")) and not node.text.startswith(("{", "[")):
                yield ("{" if node.text.endswith("}") else "[") + node.text
            yield from (f"[{typed}]", f"{{type: {typed}}}")

    def _rename(self, entry: _Entry) -> Iterator[Proposal]:
        """Yield edits that replace the value of `entry`, if it is text, by the name of a node or field. The names that
        occur least often in the recipe come first."""
        if not isinstance(entry.node, Scalar) or not isinstance(entry.node.value, str):
            return
        for name in self._list_names():
            if name != entry.node.text:
                yield ((*entry.value, name),)

    def _list_names(self) -> list[str]:
        root = self.root
        holders = [] if root is None else [find(root, path) for path in _NAMES_OF]
        found = [entry.name for each in holders if isinstance(each, Mapping) for entry in each]
        return sorted(found, key=lambda name: len(re.findall(rf"\b{re.escape(name)}\b", self.text)))

    def _missing(self, name: str) -> Iterator[Proposal]:
        """Yield edits that add the missing key `name`: rename another key of the mapping to it, or insert it with the
        name of a node or field as its value."""
        inside = [each for each in self.entries if self.entry is not None and each.parent is self.entry.node]
        holder = inside or ([] if self.entry is None else [self.entry, *self._siblings(self.entry)])
        for each in holder:
            yield ((*each.key, name),)
        if holder:
            start = holder[-1].value[1]
            for known in self._list_names():
                yield ((start, start, self._add(holder[-1], f"{name}: {known}")),)

    # --- places of entries --------------------------------------------------------------------------------------

    def _add(self, entry: _Entry, added: str) -> str:
        """Return the text to insert after `entry` in order to add the entry `added`, such as `lr: 0.1`, to the same
        mapping. It begins with a comma inside `{ }`, else with a line break and the indentation."""
        if self._is_flow(entry):
            return f", {added}"
        return f"\n{' ' * (entry.key[0] - self._line_start(entry.key[0]))}{added}"

    def _line_start(self, offset: int) -> int:
        return self.text.rfind("\n", 0, offset) + 1

    def _is_flow(self, entry: _Entry) -> bool:
        return bool(self.text[self._line_start(entry.key[0]) : entry.key[0]].strip(" -"))

    def _remove(self, entry: _Entry) -> Edit | None:
        """Return the edit that removes `entry` and everything below it. Return None if the entry is on the same line as
        the `-` of a list item, because the item would be damaged."""
        start, end = entry.key[0], max(entry.value[1], entry.key[1])
        if self._is_flow(entry):
            if after := re.compile(r"[ \t]*,[ \t]*").match(self.text, end):
                return start, after.end(), ""
            before = re.search(r"[ \t]*,[ \t]*$", self.text[:start])
            return (start - len(before[0]) if before else start), end, ""
        begin = self._line_start(start)
        stop = self.text.find("\n", end)
        return None if self.text[begin:start].strip() else (begin, len(self.text) if stop < 0 else stop + 1, "")

    def _enclose(self) -> list[_Entry]:
        """Return the entries of mappings that contain the position of the diagnostic, the innermost first."""
        if self.entry is None:
            return []
        return [
            each
            for each in reversed(self.entries)
            if each.path == self.entry.path[: len(each.path)] and each.key[0] <= self.at
        ]

    def unite(self) -> Iterator[Proposal]:
        """Yield an edit for a key that is written twice with the same value (code Y003): remove the second one."""
        if self.diagnostic.code != "Y003":
            return
        first = self.diagnostic.related[0].span
        start = self.lines.offset(first.line, first.column)
        entry = next((each for each in self.entries if each.key[0] == start), None)
        if entry is None:
            return
        size = max(entry.value[1], entry.key[1]) - start
        if self.text[self.at : self.at + size] == self.text[start : start + size]:
            again = entry._replace(key=(self.at, self.at), value=(self.at + size, self.at + size))
            if (removed := self._remove(again)) is not None:
                yield (removed,)

    def move(self) -> Iterator[Proposal]:
        """Yield edits that move the entry at the place of the diagnostic to another section that allows its key."""
        entry = self.entry
        if entry is None or self.root is None or not isinstance(entry.node, Scalar):
            return
        removed = self._remove(entry)
        for word in dict.fromkeys((entry.path[-1], *KEYS.get(entry.path[-1], ()))):
            for place in find_sections_with(word):
                section = find(self.root, tuple(place.split(".")) if place else ())
                if not isinstance(section, Mapping) or not section.entries or section is entry.parent:
                    continue
                last = [each for each in self.entries if each.parent is section]
                if removed is None or not last or section.get(word) is not None:
                    continue
                end = last[-1].value[1]
                yield removed, (end, end, self._add(last[-1], f"{word}: {self._read(entry)}"))

    def remove(self) -> Iterator[Proposal]:
        """Yield the edit that removes the entry at the place of the diagnostic. Yield nothing if the entry has several
        lines, or if the diagnostic reports a missing key.
        """
        entry = self.entry
        if entry is None or self.at not in (entry.key[0], entry.value[0]) or " needs `" in self.diagnostic.message:
            return
        if "\n" not in self.text[entry.key[0] : entry.value[1]] and (edit := self._remove(entry)) is not None:
            yield (edit,)

    # --- text ---------------------------------------------------------------------------------------------------

    def _line(self, number: int) -> tuple[int, str]:
        return self.lines.offset(number, 1), self.lines.line(number)

    def indent(self) -> Iterator[Proposal]:
        """Yield edits that change the indentation of one line: of the diagnostic's line, the next, the previous or a
        line to which the diagnostic refers. The new indentation is that of a nearby line, or 2 spaces more."""
        here = self.diagnostic.span.line
        near = [self.lines.line(number) for number in range(here - _NEAR, here + _NEAR)]
        widths = sorted({len(line) - len(line.lstrip()) for line in near if line.strip() and "\t" not in line})
        widths = sorted({*widths, *(width + 2 for width in widths)})
        related = [each.span.line for each in self.diagnostic.related]
        for number in dict.fromkeys((here, here + 1, here - 1, *related)):
            start, line = self._line(number)
            own = len(line) - len(line.lstrip())
            if not line.strip():
                continue
            for width in sorted(widths, key=lambda width: abs(width - own)):
                if width != own:
                    yield ((start, start + own, " " * width),)

    def retype(self) -> Iterator[Proposal]:
        """Yield edits that correct brackets, quotes, colons or commas on one line: the diagnostic's line, the previous
        one or a line to which the diagnostic refers."""
        spans = (self.diagnostic.span, *(each.span for each in self.diagnostic.related))
        for number in dict.fromkeys((spans[0].line, spans[0].line - 1, *(each.line for each in spans))):
            start, whole = self._line(number)
            line = re.sub(r"\s+#.*$", "", whole)
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            for pattern, meant in _TYPED:
                yield from (((start + f.start(), start + f.end(), meant),) for f in pattern.finditer(line))
            yield from self._brackets(start, line)

    def _brackets(self, start: int, line: str) -> Iterator[Proposal]:
        for opener, closer in _CLOSERS.items():
            missing = line.count(opener) - line.count(closer)
            if missing > 0:
                ends = [found.start() for found in re.finditer(r",\s|[\]}]|$", line)]
                yield from (((start + end, start + end, closer),) for end in ends)
            if missing < 0:
                begins = [found.end() for found in re.finditer(r":\s+|[\[{]", line)]
                yield from (((start + begin, start + begin, opener),) for begin in begins)
            if missing:
                wrong = [at for at, letter in enumerate(line) if letter in (opener, closer)]
                yield from (((start + at, start + at + 1, ""),) for at in wrong)
        for quote in "\"'":
            if line.count(quote) % 2:
                ends = [found.start() for found in re.finditer(r"\s*[,\]}]|$|(?<=: )\S", line)]
                yield from (((start + end, start + end, quote),) for end in ends)
                yield from (((start + at, start + at + 1, ""),) for at, each in enumerate(line) if each == quote)


def apply(text: str, proposal: Proposal) -> str | None:
    """Return `text` after the edits of `proposal`; None if two of them overlap."""
    parts = sorted(proposal)
    if any(one[1] > other[0] for one, other in pairwise(parts)):
        return None
    for start, end, new in reversed(parts):
        text = text[:start] + new + text[end:]
    return text
