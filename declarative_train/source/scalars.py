"""YAML scalars: their values, and the positions of their characters.

Values follow the YAML 1.2 core schema (https://yaml.org/spec/1.2.2/#103-core-schema), not the 1.1 rules of most
parsers: `1e-4` and `.5` are floats, `no` and `1:30` are text, `010` is ten and `0o10` eight.
"""

from __future__ import annotations

import re

from declarative_train.core.diagnostics.lines import Lines
from declarative_train.source.node import Piece, ScalarValue

_WORDS: dict[str, ScalarValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_MAX_DIGITS = 300  # a longer run of digits is text; int() refuses 4,300
_NUMBER_START = frozenset("0123456789+-.")

_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|\r\n|.)|''", re.DOTALL)


def resolve(text: str) -> ScalarValue:
    """Return the value of a plain (unquoted) scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_START or len(text) > _MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _BASED.fullmatch(text):
        return int(text[2:], 8 if text[1] == "o" else 16)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def has_leading_zero(text: str) -> bool:
    """Return True for an integer like `010`, which is 10 in YAML 1.2 and in dtrain, and 8 in YAML 1.1."""
    return _LEADING_ZERO.fullmatch(text) is not None


def pieces(lines: Lines, start: int, end: int, value: str, *, escapes: bool) -> tuple[Piece, ...]:
    """Return where the characters of `value`, the text as YAML reads it, are in the file: see `Scalar.pieces`
    (`source/node.py`). Return () if `value` is identical to the typed text.

    `start`, `end`: offsets of the typed text, without quotes. `escapes`: it may have escapes, which begin with a
    backslash."""
    if lines.text[start:end] == value:
        return ()
    found: list[Piece] = []
    position = 0
    for begin, run in _runs(lines.text[start:end], escapes):
        at = value.find(run, position)
        if at >= 0:
            found.append((at, *lines.place(start + begin)))
            position = at + len(run)
    return tuple(found) or ((0, *lines.place(start)),)


def _runs(raw: str, escapes: bool) -> list[tuple[int, str]]:
    """Return (offset in `raw`, text) for each part of a scalar that is the same in the file and in the value. A part is
    a line without its indentation. `raw`: the scalar as written in the file. `escapes`: whether `raw` has escape
    sequences; each of them ends a part."""
    cuts = [0]
    if escapes:
        for escape in _ESCAPE.finditer(raw):
            cuts += [escape.start(), escape.end()]
    cuts.append(len(raw))
    runs: list[tuple[int, str]] = []
    for begin, end in zip(cuts[::2], cuts[1::2], strict=True):
        for line in re.finditer(r"[^\r\n]+", raw[begin:end]):
            text = line[0]
            first = line.start() == 0 and raw[begin - 1 : begin] not in ("\n", "\r")
            stripped = text if first else text.lstrip(" \t")
            runs.append((begin + line.start() + len(text) - len(stripped), stripped.rstrip(" \t") or stripped))
    return [run for run in runs if run[1]]
