"""What is wrong with a tokenizer."""

from __future__ import annotations


class TokenizerError(Exception):
    """A tokenizer that cannot be used: the words for the user, and one hint."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help
