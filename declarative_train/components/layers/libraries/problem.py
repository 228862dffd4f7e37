"""What is wrong with a model of another library, as one line for people."""

from __future__ import annotations


class LibraryError(ValueError):
    """`field` or `port`: the key or input of the node that it is about; `hint`: what can be done."""

    def __init__(
        self, message: str, hint: str | None = None, *, field: str | None = None, port: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint, self.field, self.port = hint, field, port
