"""Comments `# dtrain: ignore[CODE]`: remove the diagnostics that they name, and report comments that are wrong.

at the end of a line            applies to this line
on its own line                 applies to the next line that is not a comment
`# dtrain: ignore-file[CODE]`   applies to the whole file

Errors cannot be ignored. A comment is reported as unused only if every check that it could hide has run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from declarative_train.core.diagnostics.checks.ignores import ignore_without_code, ignored_error, unused_ignore
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span

_COMMENT = re.compile(r"(?:^|(?<=\s))#\s*dtrain:\s*(?P<word>ignore(?:-file)?)\b[ \t]*(?P<codes>\[[^\]\r\n]*\])?")
_CODE = re.compile(r"[^\s,\[\]]+")


@dataclass(slots=True)
class _Comment:
    """Comment `# dtrain: ignore[...]`. `line`: the line whose diagnostics it hides, None for the whole file."""

    line: int | None
    codes: dict[str, Span]
    span: Span
    used: set[str] = field(default_factory=set)

    def covers(self, diagnostic: Diagnostic) -> bool:
        return diagnostic.code in self.codes and self.line in (None, diagnostic.span.line)


def suppress(
    diagnostics: Iterable[Diagnostic], texts: Mapping[str, str], *, checked: tuple[str, ...] | None = None
) -> list[Diagnostic]:
    """Return the diagnostics that no comment hides, and diagnostics of wrong comments, such as one that hides nothing.
    Comments cannot hide errors.

    `texts`: {path: text} of the files in which comments are searched. `checked`: prefixes of the codes whose checks
    have run; None: all. No comment is reported as unused if its check has not run, or if there is an error.
    """
    found = list(diagnostics)
    left: list[Diagnostic] = []
    comments: dict[str, list[_Comment]] = {}
    messages: list[Diagnostic] = []
    for path, text in texts.items():
        if "dtrain:" in text and not path.startswith("--"):
            comments[path], wrong = _comments(Lines(path, text))
            messages += wrong
    for diagnostic in found:
        covering = [comment for comment in comments.get(diagnostic.span.path, []) if comment.covers(diagnostic)]
        for comment in covering:
            if diagnostic.is_error and diagnostic.code not in comment.used:
                messages.append(ignored_error(comment.codes[diagnostic.code], diagnostic.code, diagnostic.span))
            comment.used.add(diagnostic.code)
        if diagnostic.is_error or not covering:
            left.append(diagnostic)
    stopped = any(diagnostic.is_error for diagnostic in found)
    for path, each in comments.items():
        for comment in each if not stopped else ():
            unused = [c for c in comment.codes if c not in comment.used and (checked is None or c.startswith(checked))]
            messages += [_report_unused(comment, code, unused, Lines(path, texts[path])) for code in unused]
    return [*left, *messages]


def _comments(lines: Lines) -> tuple[list[_Comment], list[Diagnostic]]:
    comments: list[_Comment] = []
    wrong: list[Diagnostic] = []
    for number in range(1, len(lines) + 1):
        line = lines.line(number)
        for found in _COMMENT.finditer(line) if "dtrain:" in line else ():
            if _is_quoted(line[: found.start()]):
                continue
            span = Span(lines.path, number, found.start() + 1, number, found.end() + 1)
            places = _CODE.finditer(line, found.start("codes") + 1, found.end("codes") - 1) if found["codes"] else ()
            codes = {
                code[0].upper(): Span(lines.path, number, code.start() + 1, number, code.end() + 1) for code in places
            }
            if not codes:
                wrong.append(ignore_without_code(span, f"# dtrain: {found['word']}"))
                continue
            target: int | None = _next_content(lines, number) if not line[: found.start()].strip() else number
            comments.append(_Comment(None if found["word"] == "ignore-file" else target, codes, span))
    return comments, wrong


def _is_quoted(before: str) -> bool:
    """Return whether the text before a `#` has an unclosed quote, so that the `#` does not begin a comment."""
    quote = ""
    for at, character in enumerate(before):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'" and (at == 0 or before[at - 1] in " \t[{,:"):
            quote = character
    return bool(quote)


def _next_content(lines: Lines, number: int) -> int:
    for following in range(number + 1, len(lines) + 1):
        text = lines.line(following).strip()
        if text and not text.startswith("#"):
            return following
    return number


def _report_unused(comment: _Comment, code: str, unused: list[str], lines: Lines) -> Diagnostic:
    """Return the diagnostic for `code`, a code in an ignore comment that hides no diagnostic. `unused`: all codes of
    the comment that hide none. The fix removes all of them, or the whole comment if no code is left."""
    span = comment.codes[code]
    line = lines.line(span.line)
    if len(unused) == len(comment.codes):
        start = len(line[: comment.span.column - 1].rstrip())
        end = len(line)
        rest = line[comment.span.end_column - 1 :].strip()
        if rest:  # text after the brackets stays, as a comment of its own
            start, end = comment.span.column - 1, line.index(rest, comment.span.end_column - 1)
            edit = Fix(Span(span.path, span.line, start + 1, span.line, end + 1), "# ", safe=True)
        else:
            edit = Fix(Span(span.path, span.line, start + 1, span.line, end + 1), "", safe=True)
        return unused_ignore(span, code, edit)
    inside = line[comment.span.column - 1 : comment.span.end_column - 1]
    kept = [each for each in comment.codes if each not in unused]
    replacement = f"{inside[: inside.index('[')]}[{', '.join(kept)}]"
    return unused_ignore(span, code, Fix(comment.span, replacement, safe=True))
