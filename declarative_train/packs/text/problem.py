"""Error of a tokenizer. This module imports nothing, so that all modules of the pack can import it."""

from __future__ import annotations


class TokenizerError(Exception):
    """Error: a tokenizer cannot be used. It has a message for the user and a hint."""

    def __init__(self, message: str, help: str | None = None) -> None:
        super().__init__(message)
        self.help = help
