"""Tables as aligned plain text, at most as wide as the terminal."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from itertools import zip_longest
from textwrap import wrap


def terminal_width() -> int | None:
    """Return the number of characters in a line, from COLUMNS or the terminal; None for a file or a pipe, whose lines
    may have any length."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Sequence[int] = (),
    width: int | None = None,
    longest_word: int | None = None,
) -> str:
    """Return rows as an aligned text below a header. Columns whose index is in `right` are aligned to the right.

    A table wider than `width` is narrowed by line breaks, in this order until it fits: after `/` in the header, between
    words in the widest columns, within words longer than `longest_word`, between words of the header.
    """
    columns = list(zip(header, *rows, strict=True))
    widths, words = [max(map(len, column)) for column in columns], [0] * len(columns)
    if width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        header = [name.replace("/", "/ ") for name in header]
        columns = list(zip(header, *rows, strict=True))
        words = [_longest(column, longest_word) for column in columns]
        whole = [least if "/" in name else max(least, len(name)) for least, name in zip(words, header, strict=True)]
        words = whole if sum(whole) + 2 * (len(whole) - 1) <= width else words
        widths = [max(least, *map(len, cells)) for least, (_, *cells) in zip(words, columns, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(range(len(widths)), key=lambda index: (widths[index] > words[index], widths[index]))
        if widths[widest] == words[widest]:
            break
        widths[widest] -= 1
    lines = []
    for row in [header, ["-" * each for each in widths], *rows]:
        wrapped = (wrap(cell, each) or [""] for cell, each in zip(row, widths, strict=True))
        for cells in zip_longest(*wrapped, fillvalue=""):
            aligned = (
                cell.rjust(each) if index in right else cell.ljust(each)
                for index, (cell, each) in enumerate(zip(cells, widths, strict=True))
            )
            lines.append("  ".join(aligned).rstrip())
    return "\n".join(lines)


def _longest(cells: Sequence[str], most: int | None) -> int:
    found = max((len(word) for cell in cells for word in cell.split()), default=0)
    return found if most is None else min(found, most)


def items(rows: Sequence[tuple[str, str, Sequence[str]]], width: int) -> str:
    """Return entries as lines of text, no longer than `width`. An entry is (number, name, texts). Its texts are below
    each other in a column at the right of its number and name."""
    margin = max(len(number) for number, _, _ in rows) + max(len(name) for _, name, _ in rows) + 4
    names = max(len(name) for _, name, _ in rows)
    lines = []
    for number, name, texts in rows:
        head = f"{number:<{margin - names - 4}}  {name:<{names}}  "
        broken = [line for text in texts for line in wrap(text, max(width - margin, 1))]
        lines += [f"{head if at == 0 else ' ' * margin}{line}".rstrip() for at, line in enumerate(broken)]
    return "\n".join(lines)


FILLED = 100  # column at which long lines of the given texts are broken
_BEGINNING = re.compile(r" *(\S+(?: \S+)*?:? {2,})?")


def fit_lines(text: str, width: int | None) -> str:
    """Return a text with no line longer than `width`. Paragraphs are wrapped. If a line has two blanks in a row, the
    text after them is a second column, which stays aligned.
    """
    if width is None:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        margin = len(line) - len(line.lstrip())
        if lines and line and margin == len(lines[-1]) - len(lines[-1].lstrip()) and _is_full(lines[-1], line):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(part for line in lines for part in _break_cells(line, width))


def _is_full(line: str, following: str) -> bool:
    return len(line) + len(following.split()[0]) > FILLED and "  " not in line.strip()


def _break_cells(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    found = _BEGINNING.match(line)
    head = found.group() if found else ""
    room = max(width - len(head), 20)
    parts = wrap(line[len(head) :], room, break_long_words=False, break_on_hyphens=False)
    return [f"{head if at == 0 else ' ' * len(head)}{part}" for at, part in enumerate(parts)]
