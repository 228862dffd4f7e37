"""Cache of byte ranges of remote files: each range is requested once.

A file is divided into grains of 64 KiB. The cache stores 64 consecutive grains in one file, called a segment:

    head     (64, 2) uint32: for each grain, the number of its slot (from 1; 0: missing) and the CRC-32 of its bytes and
             index
    slots    the bytes of grains, in the order in which they arrived

The name of a segment is a hash of the URL, size and tag of the remote file, so changed content has other segments.
Bytes that do not match their checksum count as missing, so a damaged segment only costs another request. If several
processes want the same grains, one requests them and the others wait.

If a remote file changes during a run, the run ends.
"""

from __future__ import annotations

import io
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from zlib import crc32

from declarative_train.files.cache import cache_path, count_written, limit_bytes, mark_used
from declarative_train.files.lock import FileLock
from declarative_train.files.paths import SourceError, file_system, format_path
from declarative_train.files.remote import FileInfo, find_info, retry

GRAIN = 1 << 16
_OF_SEGMENT = 64  # grains
_OF_REQUEST = 256  # grains of one request: 16 MiB, whole segments
_AHEAD = 4, 128  # grains to read ahead of a sequential reader: at first, and at most
_WAIT_S = 60.0  # longest wait for another process; then the bytes are requested and not stored
ASKED_S = 60.0  # after this time the server is asked for the tag of the file again
_MOST = 256  # files with a Ranges object, which holds a few numbers
_HEAD = struct.Struct(f"<{2 * _OF_SEGMENT}I")

Fetch = Callable[[int, int], bytes]
"""Function that returns the bytes from start to stop; the whole file if the server does not support ranges."""


class Ranges:
    """Remote file of `size` bytes. Its byte ranges are read from the cache or, if they are missing there, from the
    server. Thread-safe.

    `name`: values that identify the content of the file, such as its URL and its tag. The names of its files in the
    cache are hashes of these values. `fetch(start, stop)`: function that requests bytes from the server."""

    def __init__(self, name: Sequence[object], size: int, fetch: Fetch) -> None:
        self.size = size
        self._name = tuple(name)
        self._fetch_once = fetch
        self._whole: bytes | None = None
        self._num_grains = -(-size // GRAIN)
        self._next = -1  # grain after the last request
        self._ahead = 0

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop` (exclusive), at most to the end of the file. Raises the exceptions of
        `fetch`."""
        start, stop = max(start, 0), min(stop, self.size)
        if start >= stop:
            return b""
        first, last = start // GRAIN, -(-stop // GRAIN)
        found: list[bytes] = []
        while first < last:
            end = min(last, (first // _OF_REQUEST + 1) * _OF_REQUEST)
            found += self._grains(first, end)
            first = end
        if self._whole is not None:
            self._keep_whole()
        begin = start // GRAIN * GRAIN
        return b"".join(found)[start - begin : stop - begin]

    def _keep_whole(self) -> None:
        """Write the whole file to the cache, after the server sent all bytes in answer to a request for a range."""
        for segment in range(-(-self._num_grains // _OF_SEGMENT)):
            begin, end = segment * _OF_SEGMENT, min((segment + 1) * _OF_SEGMENT, self._num_grains)
            with self._lock_segments({segment}) as handles:
                head = _head(handles[segment]) if handles else [1] * (2 * _OF_SEGMENT)
                for run in _runs([grain for grain in range(begin, end) if not head[2 * (grain - begin)]]):
                    self._fetch(*run, handles)
        self._whole = None

    def _grains(self, first: int, last: int) -> list[bytes]:
        found = self._read_kept(first, last)
        if len(found) < last - first:
            missing = [grain for grain in range(first, last) if grain not in found]
            with self._lock_segments({grain // _OF_SEGMENT for grain in missing}) as handles:
                found |= self._read_kept(missing[0], missing[-1] + 1)  # another process may have been first
                missing = [grain for grain in missing if grain not in found]
                for run in _runs(missing + self._more(missing, last, handles)):
                    found |= self._fetch(*run, handles)
        return [found[grain] for grain in range(first, last)]

    def _more(self, missing: Sequence[int], last: int, handles: dict[int, int]) -> list[int]:
        """Return the indices of grains (pieces of 64 KiB) to read ahead when the grains `missing` are requested: the
        next ones from `last` on that the cache lacks, in the same segment (file of the cache). Return [] if the file is
        not read from front to back, or if this process has not locked the segment.

        `handles`: descriptors of the segments that this process has locked."""
        if not missing:
            return []
        least, most = _AHEAD
        self._ahead = min(max(2 * self._ahead, least), most) if missing[0] == self._next else 0
        self._next = missing[-1] + 1
        end = min(last + self._ahead, (last - 1) // _OF_SEGMENT * _OF_SEGMENT + _OF_SEGMENT, self._num_grains)
        if missing[-1] + 1 != last or end <= last or (last - 1) // _OF_SEGMENT not in handles:
            return []
        head = _head(handles[(last - 1) // _OF_SEGMENT])
        found = [grain for grain in range(last, end) if not head[2 * (grain % _OF_SEGMENT)]]
        self._next = (found[-1] if found else last - 1) + 1
        return found

    def _fetch(self, first: int, last: int, handles: dict[int, int]) -> dict[int, bytes]:
        begin, end = first * GRAIN, min(last * GRAIN, self.size)
        if self._whole is not None:
            content = self._whole[begin:end]
        else:
            content = self._fetch_once(begin, end)
            if len(content) > end - begin:  # a server without ranges
                self._whole, content = content, content[begin:end]
        found = {grain: content[(grain - first) * GRAIN : (grain - first + 1) * GRAIN] for grain in range(first, last)}
        for segment, handle in handles.items():
            mine = [grain for grain in found if grain // _OF_SEGMENT == segment]
            if mine:
                with suppress(OSError):  # a full disk: it will be requested again
                    _put(handle, mine, found)
                    count_written(len(mine) * GRAIN, self._place(segment))
        return found

    def _read_kept(self, first: int, last: int) -> dict[int, bytes]:
        """Return {index: bytes} of the grains (blocks of 64 KiB) from `first` to `last` (exclusive) that are undamaged
        in the cache."""
        found: dict[int, bytes] = {}
        for segment in range(first // _OF_SEGMENT, (last - 1) // _OF_SEGMENT + 1):
            place = self._place(segment)
            begin = segment * _OF_SEGMENT
            with suppress(OSError), open(place, "rb") as file:
                self._take(file.fileno(), range(max(first, begin), min(last, begin + _OF_SEGMENT)), found)
                mark_used(place)
        return found

    def _take(self, handle: int, wanted: range, found: dict[int, bytes]) -> None:
        head = _head(handle)
        slots = {grain: slot for grain in wanted if (slot := head[2 * (grain % _OF_SEGMENT)])}
        if not slots:
            return
        least, most = min(slots.values()), max(slots.values())
        dense = most - least < 2 * len(slots) and most <= 4 * _OF_SEGMENT
        together = os.pread(handle, (most - least + 1) * GRAIN, _at(least)) if dense else b""
        for grain, slot in slots.items():
            size = min(GRAIN, self.size - grain * GRAIN)
            inside = (slot - least) * GRAIN
            content = together[inside : inside + size] if dense else os.pread(handle, size, _at(slot))
            if len(content) == size and crc32(content, grain) == head[2 * (grain % _OF_SEGMENT) + 1]:
                found[grain] = content

    def _place(self, segment: int) -> str:
        place = cache_path("remote", *self._name, segment, ending="bytes")
        assert place is not None
        return place

    @contextmanager
    def _lock_segments(self, segments: set[int]) -> Iterator[dict[int, int]]:
        """Lock segments (files of the cache) during the `with` block. Yield a dict from the index of a segment to its
        file descriptor. It lacks segments that another process keeps locked or that cannot be written."""
        until = time.monotonic() + _WAIT_S
        handles: dict[int, int] = {}
        with ExitStack() as stack:
            for segment in sorted(segments):  # in the same order in all processes, so that they cannot block each other
                place, lock = self._place(segment), FileLock()
                with suppress(OSError):
                    os.makedirs(os.path.dirname(place), exist_ok=True)
                    if lock.take(place, lambda _: time.monotonic() < until, 0o600):
                        stack.callback(lock.release, remove=False)
                        handles[segment] = lock.handle
            yield handles


class RangeFile(io.RawIOBase):
    """Remote file as a seekable Python file. Small reads are served from a buffer in memory."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._at = 0
        self._buffer = (0, b"")

    def read(self, size: int | None = -1) -> bytes:
        stop = self._ranges.size if size is None or size < 0 else min(self._at + size, self._ranges.size)
        if stop - self._at >= GRAIN:
            found = self._ranges.read(self._at, stop)
        else:
            begin, buffer = self._buffer
            if not begin <= self._at <= stop <= begin + len(buffer):
                begin = self._at // GRAIN * GRAIN
                buffer = self._ranges.read(begin, -(-stop // GRAIN) * GRAIN)
                self._buffer = begin, buffer
            found = buffer[self._at - begin : max(stop - begin, 0)]
        self._at += len(found)
        return found

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def seek(self, place: int, whence: int = 0) -> int:
        self._at = max(0, place + (0, self._at, self._ranges.size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def is_on() -> bool:
    """Return whether this cache is used: there is a folder for it, and its size limit is above 0."""
    return cache_path("remote") is not None and limit_bytes() > 0


def _at(slot: int) -> int:
    return _HEAD.size + (slot - 1) * GRAIN


def _head(handle: int) -> list[int]:
    """Return two numbers for each grain (64 KiB of a remote file) of an open segment file of the cache: its position in
    the segment file, counted from 1 (0: missing), and its checksum. `handle`: descriptor of the segment file."""
    found = os.pread(handle, _HEAD.size, 0)
    return list(_HEAD.unpack(found) if len(found) == _HEAD.size else [0] * (2 * _OF_SEGMENT))


def _put(handle: int, grains: Sequence[int], content: dict[int, bytes]) -> None:
    """Append pieces of 64 KiB of a remote file to the open cache file `handle`, and record their places in its header.
    `grains`: indices of the pieces in the remote file. `content`: dict from index to bytes. Raises OSError."""
    head = _head(handle)
    slot = 1 + max(0, -(-(os.fstat(handle).st_size - _HEAD.size) // GRAIN))
    whole = b"".join(content[grain] for grain in grains)
    if os.pwrite(handle, whole, _at(slot)) < len(whole):
        return
    for place, grain in enumerate(grains):
        head[2 * (grain % _OF_SEGMENT)] = slot + place
        head[2 * (grain % _OF_SEGMENT) + 1] = crc32(content[grain], grain)
    os.pwrite(handle, _HEAD.pack(*head), 0)


def _runs(grains: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive numbers in `grains`, which are in ascending order, each as (first, last + 1)."""
    found: list[tuple[int, int]] = []
    for grain in grains:
        if found and found[-1][1] == grain:
            found[-1] = (found[-1][0], grain + 1)
        else:
            found.append((grain, grain + 1))
    return found


_ranges: OrderedDict[str, tuple[FileInfo, Ranges]] = OrderedDict()
_asked: dict[str, float] = {}  # time of the last check


def ranges_of(path: str) -> Ranges | None:
    """Return the `Ranges` of a remote file, which read the file through the cache. Return None if the file cannot be
    cached: its size or tag is unknown, its server does not support ranges, or the cache is off."""
    info = find_info(path)
    if info is None or not info.tag or not info.in_parts or not is_on():
        return None
    known = _ranges.pop(path, None)
    if known is None or known[0][:2] != info[:2]:
        known = info, _make_ranges(path, info)
    _ranges[path] = known
    while len(_ranges) > _MOST:
        _ranges.popitem(last=False)
    return known[1]


def open_ranges(path: str) -> RangeFile | None:
    """Return a new file object that reads a remote file through the cache; None if this file cannot be cached."""
    info = find_info(path)
    return None if info is None or ranges_of(path) is None else RangeFile(_make_ranges(path, info))


def _make_ranges(path: str, info: FileInfo) -> Ranges:
    return Ranges((path, info.size, info.tag), info.size, lambda start, stop: _fetch(path, info, start, stop))


def _fetch(path: str, info: FileInfo, start: int, stop: int) -> bytes:
    """Request the bytes from `start` to `stop` of a remote file. Raises RemoteError, and SourceError if the file has
    changed."""
    system, inner = file_system(path)

    def once() -> bytes:
        found: bytes = system.cat_file(inner, start=start, end=stop)
        if len(found) not in (stop - start, info.size):
            raise ConnectionError(f"{len(found):,} bytes came of {stop - start:,}")
        return found

    found = retry(once)
    if time.monotonic() - _asked.setdefault(path, info.at) > ASKED_S:
        system.invalidate_cache()
        latest = FileInfo.of(retry(lambda: system.info(inner)))
        if latest is None or latest[:2] != info[:2]:
            raise SourceError("unreadable", f"{format_path(path)} changed while it was being read")
        _asked[path] = latest.at
    return found
