"""Standard output and error of a run, which continues even if they cannot be written.

Reasons for a failed write: the reader has exited (`| head`, a log collector, a closed terminal), the disk of the output
file is full, or a daemon was started without these streams."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

Errors = tuple[type[Exception], ...]


class LastingStream:
    """Text stream that ignores errors when it is written. `errors`: the exception classes to ignore. After the first
    error, all further output is dropped, also that of C code."""

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
    """Ignore write errors of stdout and stderr within the `with` block, also in processes that are forked in it.
    `errors`: the exception classes that count as such errors."""
    before = sys.stdout, sys.stderr
    replace_streams(errors)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def replace_streams(errors: Errors = (OSError, ValueError)) -> None:
    """Replace stdout and stderr, for the rest of this process, by streams in which write errors raise nothing.
    `errors`: the exception classes that count as such errors."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, LastingStream):
            stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (for the whole process)
            setattr(sys, name, LastingStream(stream, errors))


def write_any_character() -> None:
    """Make stdout write a JSON escape for each character that its encoding lacks, instead of raising
    UnicodeEncodeError. So JSON output stays valid. (Python already escapes such characters on stderr.)"""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None and sys.stdout.errors == "strict":
        codecs.register_error("escape", _escape)
        reconfigure(errors="escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    import json

    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end
