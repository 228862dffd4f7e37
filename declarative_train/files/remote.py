"""Reads over a network: what fails for a moment is tried again; what fails in the end is an OSError without secrets.

Each client of a cloud has exceptions of its own; some of them try again themselves.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from declarative_train.core.secrets import masked

TRIES = 5
FIRST_PAUSE_S = 0.5  # doubled after each try: 7.5 s together
_BUSY = (408, 425, 429)  # of HTTP: later it may work; and all from 500 on
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError, ValueError)
_NO_SERVER_TRIES = 2  # where no connection came about, mostly a wrong address, and where nothing comes for SILENT_S
SILENT_S = 60.0  # a server that is connected and sends nothing for so long does not answer

_TAGS = ("ETag", "etag", "LastModified", "last_modified", "Last-Modified", "mtime", "blob_id")  # by file systems

T = TypeVar("T")


class Seen(NamedTuple):
    """What a file system said of a file when it was asked: its size, a date or a tag that changes with its content ("":
    none), whether its server gives parts of it, and when that was (`time.monotonic`)."""

    size: int
    tag: str
    in_parts: bool
    at: float

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> Seen | None:
        """None without a size."""
        if info.get("size") is None:
            return None
        tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
        return cls(int(info["size"]), tag, info.get("partial") is not False, time.monotonic())


_seen: dict[str, Seen] = {}


def note(path: str, info: Mapping[str, Any]) -> Seen | None:
    """Keep what fsspec's `info` says of a file until its source is opened again; None without a size."""
    found = Seen.of(info)
    if found is None:
        _seen.pop(path, None)
    else:
        _seen[path] = found
    return found


def seen(path: str) -> Seen | None:
    return _seen.get(path)


class RemoteError(OSError):
    """In words for a message."""


def again(call: Callable[[], T]) -> T:
    """What `call` gives, after some tries if need be. Raises RemoteError, and FileNotFoundError."""
    begun, pause_s = time.monotonic(), FIRST_PAUSE_S
    for number in range(1, TRIES + 1):
        try:
            return call()
        except Exception as error:
            is_passing = _is_passing(error)
            is_gone = isinstance(error, FileNotFoundError) and not isinstance(_told_by(error), PermissionError)
            if is_gone and not is_passing:
                raise
            most = _NO_SERVER_TRIES if _has_no_server(error) or _is_silent(error) else TRIES
            if number == most or not is_passing:
                tried = f", tried {number} times in {time.monotonic() - begun:.0f} s" if number > 1 else ""
                why = f"it sent nothing for {SILENT_S:g} s" if _is_silent(error) else reason(_told_by(error))
                raise RemoteError(f"{why}{tried}") from error
        time.sleep(pause_s)
        pause_s *= 2
    raise AssertionError("the last try returns or raises")


def _told_by(error: BaseException) -> BaseException:
    """fsspec calls every failure of an HTTP server a file that is not there."""
    return error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error


def _is_passing(error: BaseException) -> bool:
    """Whether it may work when it is tried again."""
    cause = _told_by(error)
    status = getattr(cause, "status", None)
    if isinstance(status, int) and status:
        return status in _BUSY or status >= 500
    return is_of_network(cause) and not isinstance(cause, _FINAL)


def is_of_network(error: BaseException | None) -> bool:
    cause = None if error is None else _told_by(error)
    return isinstance(cause, OSError | TimeoutError) or type(cause).__module__.startswith("aiohttp")


def _has_no_server(error: BaseException) -> bool:
    cause = _told_by(error)
    return isinstance(cause, ConnectionRefusedError) or type(cause).__name__.startswith("ClientConnector")


def _is_silent(error: BaseException) -> bool:
    return isinstance(_told_by(error), TimeoutError)


def of_http() -> dict[str, Any]:
    """Return the options of a client of HTTP, as fsspec takes them: how long it waits (aiohttp's own limit is 300 s for
    a whole answer, however much it is), and that it follows no redirect to another server."""
    from aiohttp import ClientTimeout

    wait = ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S)
    return {"client_kwargs": {"timeout": wait, "trace_configs": [_staying()]}}


@cache  # fsspec knows its file systems by what they are made with
def _staying() -> Any:
    from aiohttp import TraceConfig

    tracing = TraceConfig()
    tracing.on_request_redirect.append(_stay_with_server)
    return tracing


async def _stay_with_server(_session: object, _context: object, params: Any) -> None:
    """Raise PermissionError for a redirect to another server: it could be one that only this machine can reach, and
    what it answers would be taken for data."""
    asked = params.url
    told = asked.join(type(asked)(params.response.headers.get("Location") or params.response.headers.get("URI", "")))
    same = (told.host, told.port) == (asked.host, asked.port)
    if not same and not (told.host == asked.host and (asked.port, told.port) == (80, 443)):
        places = f"{asked.host}:{asked.port} redirects to another server, {told.host}:{told.port}"
        raise PermissionError(f"{places}, which is not followed; name the file there")


def reason(error: BaseException) -> str:
    """The first line of it, without secrets."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return masked(str(text).splitlines()[0])


class RemoteFile(io.RawIOBase):
    """A file of fsspec that can be read anywhere; each read is tried again. One that ends before its size is cut."""

    def __init__(self, opened: Any) -> None:
        self._opened = opened
        self._size: int | None = getattr(opened, "size", None)

    def read(self, size: int | None = -1) -> bytes:
        begin = self._opened.tell()
        size = -1 if size is None else size

        def once() -> bytes:
            self._opened.seek(begin)
            found: bytes = self._opened.read(size)
            if self._size is not None:
                left = max(self._size - begin, 0)
                wanted = left if size < 0 else min(size, left)
                if len(found) < wanted:
                    raise ConnectionError(f"{len(found):,} bytes came of {wanted:,}")
            return found

        return again(once)

    def readinto(self, buffer: Any) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, place: int, whence: int = 0) -> int:
        return int(self._opened.seek(place, whence))

    def tell(self) -> int:
        return int(self._opened.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._opened.close()
        super().close()
