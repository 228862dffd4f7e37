"""Remote files read by range through the cache on disk: one object for each file in use.

The size and tag of a file are those reported when its source was opened (`remote.note`). They are asked for retry from
time to time, so that a file that changes during a run ends the run.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from declarative_train.files.paths import SourceError, file_system, format_path
from declarative_train.files.range_cache import RangeFile, Ranges, is_on
from declarative_train.files.remote import FileInfo, find_info, retry

ASKED_S = 60.0  # after this time the server is asked for the tag of the file again
_MOST = 256  # files with a Ranges object, which holds a few numbers

_ranges: OrderedDict[str, tuple[FileInfo, Ranges]] = OrderedDict()
_asked: dict[str, float] = {}  # time of the last check


def ranges_of(path: str) -> Ranges | None:
    """Return the ranges of a file; None if no source has noted the file, its server has no ranges or no tag, or the
    cache is off."""
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
    """Return a file object with a position of its own; None in the cases of `ranges_of`."""
    info = find_info(path)
    return None if info is None or ranges_of(path) is None else RangeFile(_make_ranges(path, info))


def _make_ranges(path: str, info: FileInfo) -> Ranges:
    return Ranges((path, info.size, info.tag), info.size, lambda start, stop: _fetch(path, info, start, stop))


def _fetch(path: str, info: FileInfo, start: int, stop: int) -> bytes:
    """Send one request. Raises RemoteError, and SourceError for a file that has changed."""
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
            raise SourceError("unreadable", f"{format_path(path)} was changed while it was being read")
        _asked[path] = latest.at
    return found
