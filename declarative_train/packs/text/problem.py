"""Error of a tokenizer, in a module that all of this package can import."""

from __future__ import annotations


class TokenizerError(Exception):
    """Tokenizer that cannot be used: a message for the user and one hint."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help
