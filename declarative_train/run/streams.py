"""Standard output and error that a run may lose: it goes on without its console, and nobody takes that for its end.

A reader goes away (`| head`, a log collector that dies, a terminal that is closed), a disk behind `>` fills up, or a
daemon was started without streams.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

Errors = tuple[type[Exception], ...]


class LastingStream:
    """A text stream whose writes never fail by these errors: after the first that did, the rest is dropped, that of C
    code too. ValueError: somebody closed it."""

    def __init__(self, stream: TextIO, errors: Errors = (OSError, ValueError)) -> None:
        self._stream = stream
        self._errors = errors
        self._is_gone = False

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        self.write("".join(lines))

    def flush(self) -> None:
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _try(self, call: Any, *args: str) -> None:
        if self._is_gone:
            return
        try:
            call(*args)
        except self._errors:
            self._is_gone = True
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


@contextmanager
def outlive_readers(errors: Errors = (OSError, ValueError)) -> Iterator[None]:
    """For this process and those that it forks meanwhile."""
    before = sys.stdout, sys.stderr
    lasting_streams(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def lasting_streams(errors: Errors = (OSError, ValueError)) -> None:
    """For good, in a process that is ours."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, LastingStream):
            stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for the whole process)
            setattr(sys, name, LastingStream(stream, errors))


def write_any_character() -> None:
    """What the encoding of standard output does not have is written as JSON escapes it: a message that cannot be shown
    in full is better than none, and JSON stays JSON. (On standard error Python does the like by itself.)"""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        codecs.register_error("escape", _escaped)
        reconfigure(errors="escape")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    import json

    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
