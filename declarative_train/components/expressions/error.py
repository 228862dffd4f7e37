"""What is wrong with an expression, and where in its text."""

from __future__ import annotations

from typing import Literal

ExpressionRule = Literal["syntax", "form", "function", "arguments", "batch", "shapes"]
"""syntax: cannot be read. form: Python that expressions do not have. function: no such function. arguments: not what
the function takes. batch: dimension 0 indexed, reduced or moved. shapes: torch refuses the tensors (only `infer`)."""


class ExpressionError(Exception):
    """`offset` and `length` in characters of the expression's text; `help` is one way out; `instead`: a word of it,
    and the one to write in its place."""

    def __init__(
        self,
        message: str,
        offset: int,
        length: int = 1,
        help: str | None = None,
        rule: ExpressionRule = "syntax",
        instead: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.length = max(1, length)
        self.help = help
        self.rule: ExpressionRule = rule
        self.instead = instead
