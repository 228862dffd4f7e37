"""Lexer of a single line of YAML, used for lines that the YAML parser rejects, so that a message can say what the user
meant.

It finds keys, values, comments, and the ends of quotes and brackets. A "cut value" is a value in round brackets, such
as `(1, 2)`, which YAML cuts into pieces at its commas.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as SequenceABC

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span
from declarative_train.source.checks.yaml_values import cut_expression, cut_tuple
from declarative_train.source.node import Node, Scalar, Sequence
from declarative_train.source.scalars import resolve

_ENTRY = re.compile(
    r"""(?P<lead>[ \t]*(?:-[ ]+)*)
        (?:(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s'"\[\]{},#&*!|>%@`-][^#]*?|-[^\s#][^#]*?)[ \t]*:(?:[ \t]+|$))?
        (?P<value>.*)""",
    re.VERBOSE,
)
KEY_WITHOUT_SPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*:[^\s:/\\].*")  # `epochs:3`, but not a URL

_PAIRS = {"[": "]", "{": "}", "(": ")"}


def split_line(line: str) -> tuple[str, str, int, str]:
    """Split a line of YAML into its parts. Return (indentation, key, offset, value). `indentation` includes the dashes
    of list items. `key` is "" if the line has none. `offset` is the index of the value in the line. `value` has no
    comment."""
    found = _ENTRY.match(line)
    assert found is not None, "every part of the pattern is optional"
    return found["lead"], found["key"] or "", found.start("value"), without_comment(found["value"])


def without_comment(value: str) -> str:
    """Return the value without a comment ` # ...` and without trailing blanks."""
    end = 0
    while end < len(value):
        if value[end] in "\"'" and (end == 0 or value[end - 1] in " \t[{,(:="):
            end = close_quote(value, end)
        elif value[end] == "#" and (end == 0 or value[end - 1] in " \t"):
            break
        else:
            end += 1
    return value[:end].rstrip()


def close_quote(text: str, start: int) -> int:
    """Return the offset after the quoted text that begins at `start`; the length of `text` if the quote is not
    closed."""
    quote, at = text[start], start + 1
    while at < len(text):
        if text[at] == "\\" and quote == '"':
            at += 2
        elif text[at] != quote:
            at += 1
        elif quote == "'" and text[at + 1 : at + 2] == "'":
            at += 2
        else:
            return at + 1
    return len(text)


def close_bracket(text: str, start: int) -> int | None:
    """Return the offset after the bracket that closes the one at `start`, or None if none does."""
    wanted: list[str] = []
    at = start
    while at < len(text):
        character = text[at]
        if character in "\"'" and text[at - 1 : at] in ("", " ", "[", "{", "(", ",", ":", "="):
            at = close_quote(text, at)
            continue
        if character in _PAIRS:
            wanted.append(_PAIRS[character])
        elif character in "]})":
            if not wanted or wanted.pop() != character:
                return None
            if not wanted:
                return at + 1
        at += 1
    return None


def bare_templates(line: str) -> list[tuple[int, int]]:
    """Return (start, end) of each `{{ ... }}` that is neither in quotes nor in a comment. A template that is not closed
    extends to the end of the line."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(line):
        if line[at] in "\"'" and (at == 0 or line[at - 1] in " \t[{,:"):
            at = close_quote(line, at)
        elif line[at] == "#" and (at == 0 or line[at - 1] in " \t"):
            break
        elif line.startswith("{{", at):
            end = line.find("}}", at)
            end = len(line) if end < 0 else end + 2
            found.append((at, end))
            at = end
        else:
            at += 1
    return found


def flow_value(line: str, at: int) -> tuple[int, int]:
    """Return (start, end) of the value around offset `at` inside `[ ]` or `{ }`. The value begins after the previous
    colon and space, comma or opening bracket, and ends before the next comma or closing bracket. It may contain nested
    brackets."""
    start = at
    depth = 0  # number of closed brackets whose opening one is still to the left
    while start > 0:
        before = line[start - 1]
        if before in ")]}":
            depth += 1
        elif before in "([{" and depth:
            depth -= 1
        elif not depth and (before in ",[{" or (before == " " and line[start - 2 : start - 1] == ":")):
            break
        start -= 1
    while start < at and line[start] == " ":
        start += 1
    end = at
    while end < len(line) and line[end] not in ",]}":
        closed = close_bracket(line, end) if line[end] in _PAIRS else None
        end = closed if closed is not None else end + 1
    return start, start + len(line[start:end].rstrip())


def quote(text: str) -> str:
    """Return `text` as a YAML text in quotes, without escapes if possible."""
    if '"' not in text and "\\" not in text:
        return f'"{text}"'
    return "'" + text.replace("'", "''") + "'"


_TUPLE = re.compile(r"\([^()]*\)")


def num_open(pieces: SequenceABC[Scalar]) -> int:
    """Return the number of opening minus the number of closing round brackets in all `pieces`. YAML cuts a value such
    as `(1, 2)` at its comma: the result is 1 for the first piece alone, and 0 for both."""
    return sum(piece.text.count("(") - piece.text.count(")") for piece in pieces)


def join_pieces(pieces: SequenceABC[Scalar], lines: Lines) -> tuple[Node, Diagnostic]:
    """Return the value that YAML cut into `pieces` at its commas, and the diagnostic about this mistake. The value is a
    list for a tuple such as `(1, 2)`, otherwise a text."""
    first, last = pieces[0].span, pieces[-1].span
    span = Span(first.path, first.line, first.column, last.end_line, last.end_column)
    if _TUPLE.fullmatch(",".join(piece.text for piece in pieces)):
        texts = [piece.text.strip("() ") for piece in pieces]
        items = (Scalar(resolve(text), text, piece.span) for text, piece in zip(texts, pieces, strict=True))
        return Sequence(tuple(items), span, True), cut_tuple(span, f"({', '.join(texts)})", f"[{', '.join(texts)}]")
    start, end = lines.offset(first.line, first.column), lines.offset(last.end_line, last.end_column)
    text = lines.text[start:end]
    return Scalar(text, text, span), cut_expression(span, quote(text))
