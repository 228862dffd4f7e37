"""Reads over a network. Temporary failures are retried. Other failures raise an OSError without secrets in its text."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from declarative_train.core.secrets import masked

TRIES = 5
FIRST_PAUSE_S = 0.5  # doubled after each try: 7.5 s in total
_BUSY = (408, 425, 429)  # HTTP statuses worth a retry, as are all from 500 on
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError, ValueError)
_NO_SERVER_TRIES = 2  # without a connection (mostly a wrong address), and after a silence of SILENT_S
SILENT_S = 60.0  # longest time in which a connected server sends nothing

_TAGS = ("ETag", "etag", "LastModified", "last_modified", "Last-Modified", "mtime", "blob_id")  # of several clients

T = TypeVar("T")


class FileInfo(NamedTuple):
    """Facts that a file system reported about a file. `size`: in bytes. `tag`: date or tag that changes with the
    content, "" if there is none. `in_parts`: whether a range of the file's bytes can be requested. `at`: time of the
    report (`time.monotonic`)."""

    size: int
    tag: str
    in_parts: bool
    at: float

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> FileInfo | None:
        """Return the FileInfo for fsspec's `info` of a file. Return None if the info has no size."""
        if info.get("size") is None:
            return None
        tag = next((str(info[key]) for key in _TAGS if info.get(key)), "")
        return cls(int(info["size"]), tag, info.get("partial") is not False, time.monotonic())


_noted: dict[str, FileInfo] = {}


def note(path: str, info: Mapping[str, Any]) -> FileInfo | None:
    """Convert fsspec's `info` of a file to a FileInfo, store it for `find_info`, and return it. If `info`
    has no size, remove the stored FileInfo and return None.
    """
    found = FileInfo.of(info)
    if found is None:
        _noted.pop(path, None)
    else:
        _noted[path] = found
    return found


def find_info(path: str) -> FileInfo | None:
    """Return the FileInfo that `note` stored for a path, or None."""
    return _noted.get(path)


class RemoteError(OSError):
    """Failure of a remote read. Its text can be shown to the user."""


def retry(call: Callable[[], T]) -> T:
    """Call `call` until it succeeds, and return its result. It is called again, a limited number of times, only after a
    temporary failure. Raises RemoteError, and FileNotFoundError."""
    begun, pause_s = time.monotonic(), FIRST_PAUSE_S
    for number in range(1, TRIES + 1):
        try:
            return call()
        except Exception as error:
            is_temporary = _is_temporary(error)
            is_gone = isinstance(error, FileNotFoundError) and not isinstance(_cause_of(error), PermissionError)
            if is_gone and not is_temporary:
                raise
            most = _NO_SERVER_TRIES if _has_no_server(error) or _is_silent(error) else TRIES
            if number == most or not is_temporary:
                tried = f", tried {number} times in {time.monotonic() - begun:.0f} s" if number > 1 else ""
                why = f"it sent nothing for {SILENT_S:g} s" if _is_silent(error) else reason(_cause_of(error))
                raise RemoteError(f"{why}{tried}") from error
        time.sleep(pause_s)
        pause_s *= 2
    raise AssertionError("the last try returns or raises")


def _cause_of(error: BaseException) -> BaseException:
    """Return the exception that caused a FileNotFoundError, or else `error` itself. fsspec raises FileNotFoundError for
    every failure of an HTTP server, so the cause is the real reason."""
    return error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error


def _is_temporary(error: BaseException) -> bool:
    """Return whether an exception is a temporary failure, so that a retry may succeed."""
    cause = _cause_of(error)
    status = getattr(cause, "status", None)
    if isinstance(status, int) and status:
        return status in _BUSY or status >= 500
    return is_of_network(cause) and not isinstance(cause, _FINAL)


def is_of_network(error: BaseException | None) -> bool:
    """Return whether an exception is one that the network or a file system raises: an OSError, a timeout or an error of
    aiohttp. Return False for None."""
    cause = None if error is None else _cause_of(error)
    return isinstance(cause, OSError | TimeoutError) or type(cause).__module__.startswith("aiohttp")


def _has_no_server(error: BaseException) -> bool:
    cause = _cause_of(error)
    return isinstance(cause, ConnectionRefusedError) or type(cause).__name__.startswith("ClientConnector")


def _is_silent(error: BaseException) -> bool:
    return isinstance(_cause_of(error), TimeoutError)


def http_options() -> dict[str, Any]:
    """Return options for fsspec's HTTP client: a transfer may take any time, but fails if the server sends nothing for
    `SILENT_S` seconds. Redirects to another server are refused."""
    from aiohttp import ClientTimeout

    wait = ClientTimeout(total=None, sock_connect=SILENT_S, sock_read=SILENT_S)
    return {"client_kwargs": {"timeout": wait, "trace_configs": [_trace_config()]}}


@cache  # fsspec caches file systems by their options, so these must be equal each time
def _trace_config() -> Any:
    from aiohttp import TraceConfig

    tracing = TraceConfig()
    tracing.on_request_redirect.append(_stay_with_server)
    return tracing


async def _stay_with_server(_session: object, _context: object, params: Any) -> None:
    """Raise PermissionError for a redirect to another server. The other server could be one that only this machine can
    reach, and its answer would be used as data."""
    asked = params.url
    target = asked.join(type(asked)(params.response.headers.get("Location") or params.response.headers.get("URI", "")))
    same = (target.host, target.port) == (asked.host, asked.port)
    if not same and not (target.host == asked.host and (asked.port, target.port) == (80, 443)):
        places = f"{asked.host}:{asked.port} redirects to another server, {target.host}:{target.port}"
        raise PermissionError(f"{places}, which is not followed; use the new address")


def reason(error: BaseException) -> str:
    """Return the first line of the text of an exception, without secrets."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return masked(str(text).splitlines()[0])


class RemoteFile(io.RawIOBase):
    """Seekable file of fsspec whose reads are retried. A read that returns too few bytes counts as a failure."""

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
                    raise ConnectionError(f"{len(found):,} bytes received of {wanted:,}")
            return found

        return retry(once)

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
