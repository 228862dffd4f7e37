"""Error about a model of another library, as one line of text for the user."""

from __future__ import annotations


class LibraryError(ValueError):
    """Error: a model of another library cannot be used. `field`, `port`: the key or input of the node that the error is
    about; `hint`: a fix."""

    def __init__(
        self, message: str, hint: str | None = None, *, field: str | None = None, port: str | None = None
    ) -> None:
        super().__init__(message)
        self.hint, self.field, self.port = hint, field, port
