"""Error with a model of another library, as one line for users."""

from __future__ import annotations


class LibraryError(ValueError):
    """A model of another library cannot be used. `field` or `port`: the key or input of the node that it is about;
    `hint`: a fix."""

    def __init__(
        self, message: str, hint: str | None = None, *, field: str | None = None, port: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint, self.field, self.port = hint, field, port
