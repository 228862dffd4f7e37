"""What has round brackets and stands unquoted between brackets of YAML, where each comma ends an entry: Python's
`(3, 3)`, a formula such as `max(a, b)`. The pieces are put together again, so that one mistake is said once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as SequenceABC

from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.lines import Lines
from declarative_train.source import lexing
from declarative_train.source.checks.yaml_values import cut_expression, cut_tuple
from declarative_train.source.node import Node, Scalar, Sequence
from declarative_train.source.scalars import resolve
from declarative_train.terms.span import Span

_TUPLE = re.compile(r"\([^()]*\)")


def num_open(pieces: SequenceABC[Scalar]) -> int:
    """Brackets that are open behind the last piece."""
    return sum(piece.text.count("(") - piece.text.count(")") for piece in pieces)


def whole(pieces: SequenceABC[Scalar], lines: Lines) -> tuple[Node, Diagnostic]:
    """The list or the text that was meant by all pieces, and what is said of it."""
    first, last = pieces[0].span, pieces[-1].span
    span = Span(first.path, first.line, first.column, last.end_line, last.end_column)
    if _TUPLE.fullmatch(",".join(piece.text for piece in pieces)):
        texts = [piece.text.strip("() ") for piece in pieces]
        items = (Scalar(resolve(text), text, piece.span) for text, piece in zip(texts, pieces, strict=True))
        return Sequence(tuple(items), span, True), cut_tuple(span, f"({', '.join(texts)})", f"[{', '.join(texts)}]")
    start, end = lines.offset(first.line, first.column), lines.offset(last.end_line, last.end_column)
    text = lines.text[start:end]
    return Scalar(text, text, span), cut_expression(span, text, lexing.quoted(text))
