"""Diagnostics as text for a terminal: in full, with the source line and a caret, or one line each.

recipes/gpt.yaml:14:13: error[G004]: `head` takes (B, T, 384) but `block_5` gives (B, T, 512)
   |
14 |     inputs: block_5
   |             ^^^^^^^
 6 |   d_model: 512
   |            --- 512 comes from here
help: set head.d_model to 512, or leave it out to follow block_5
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.core.span import Span
from declarative_train.core.untrusted import one_line, printable

TAB_WIDTH = 4
MAX_WIDTH = 160  # cells of a source line; a longer line is cut to the part around the caret

_COLORS = {Severity.ERROR: "1;31", Severity.WARNING: "1;33", Severity.UNVERIFIED: "1;36"}


def full(diagnostics: Iterable[Diagnostic], texts: Mapping[str, Lines], *, color: bool) -> str:
    """Return each diagnostic with its source line and a caret, separated by empty lines. `texts`: source texts by path.
    `color`: add ANSI color codes."""
    return "\n".join(_block(diagnostic, texts, color) for diagnostic in diagnostics)


def concise(diagnostics: Iterable[Diagnostic]) -> str:
    """Return one line for each diagnostic: `path:line:col: severity[CODE] message`."""
    return "".join(f"{d.span}: {d.severity}[{d.code}] {one_line(d.message)}\n" for d in diagnostics)


def _block(diagnostic: Diagnostic, texts: Mapping[str, Lines], color: bool) -> str:
    paint = _painter(color)
    head = f"{diagnostic.severity}[{diagnostic.code}]"
    message = one_line(diagnostic.message)
    lines = [f"{paint('1', str(diagnostic.span))}: {paint(_COLORS[diagnostic.severity], head)}: {message}"]
    places = [(diagnostic.span, "^", ""), *((r.span, "-", one_line(r.message)) for r in diagnostic.related)]
    width = max(len(str(span.line)) for span, _, _ in places)
    gutter = " " * width
    path = diagnostic.span.path
    for number, (span, mark, label) in enumerate(places):
        text = texts[span.path].line(span.line) if span.path in texts else ""
        if not text:
            if number:
                lines.append(f"{gutter} = {span}: {label}")
            continue
        if number == 0:
            lines.append(f"{gutter} {paint('34', '|')}")
        elif span.path != path:
            lines.append(f"{gutter}{paint('34', '-->')} {span}")
        path = span.path
        shown, under = _underline(text, span)
        paint_code = _COLORS[diagnostic.severity] if mark == "^" else "34"
        label = f" {label}" if label else ""
        lines.append(f"{paint('34', f'{span.line:>{width}} |')} {shown}")
        lines.append(f"{gutter} {paint('34', '|')} {' ' * under[0]}{paint(paint_code, mark * under[1] + label)}")
    if diagnostic.help is not None:
        lines.append(f"{paint('1;32', 'help')}: {one_line(diagnostic.help)}")
    return "\n".join(lines) + "\n"


def _painter(color: bool) -> Callable[[str, str], str]:
    """Return a function that takes a text and a color and returns the text with ANSI color codes. If `color` is False,
    the function returns the text unchanged."""
    return (lambda code, text: f"\033[{code}m{text}\033[0m") if color else (lambda code, text: text)


def _underline(text: str, span: Span) -> tuple[str, tuple[int, int]]:
    """Return (line, (start, width)): the source line `text` as it is printed, and where the marks that show the span
    are printed below it, in terminal cells."""
    start = min(span.column - 1, len(text))
    end = span.end_column - 1 if span.end_line == span.line else len(text.rstrip())
    end = max(min(end, len(text)), start)
    cells: list[str] = []  # text printed for each character
    column = 0
    for character in text:
        cells.append(" " * (TAB_WIDTH - column % TAB_WIDTH) if character == "\t" else printable(character))
        column += _width(cells[-1])
    first, last = _window(cells, start, end)
    before = _width("".join(cells[first:start]))
    under = _width("".join(cells[start : min(end, last)])) or 1
    shown = "".join(cells[first:last])
    if first:
        shown, before = f"...{shown}", before + 3
    return shown.rstrip() + ("..." if last < len(text) else ""), (before, under)


def _window(cells: list[str], start: int, end: int) -> tuple[int, int]:
    """Return (start, end), the range of characters of a source line that is printed. It contains the marked characters
    or, if they are too many, the first of them. A short line is printed as a whole. `cells`: the printed form of each
    character of the line. `start`, `end`: range of the marked characters."""
    if _width("".join(cells)) <= MAX_WIDTH:
        return 0, len(cells)
    first = max(0, start - MAX_WIDTH // 3)
    return first, min(len(cells), first + MAX_WIDTH - 6)


def _width(text: str) -> int:
    """Return the number of terminal cells that a text fills: 0 for a combining character, 2 for a wide one, 1 for any
    other."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
