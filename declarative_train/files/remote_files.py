"""Files of other machines by range, through the cache on disk: one object for each, as long as it is in use.

What a file system said of a file when its source was opened (`remote.note`) is its size and its tag; now and then it is
asked again, so that a file that is changed during a run ends it.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from declarative_train.files.errors import SourceError
from declarative_train.files.paths import file_system, shown
from declarative_train.files.range_cache import RangeFile, Ranges, is_on
from declarative_train.files.remote import Seen, again, seen

ASKED_S = 60.0  # after so long a file that is read from its server is asked for its tag again
_MOST = 256  # files that single ranges are read from; of each a few numbers are kept

_ranges: OrderedDict[str, tuple[Seen, Ranges]] = OrderedDict()
_asked: dict[str, float] = {}  # when it was found to be the same


def ranges_of(path: str) -> Ranges | None:
    """None: nothing is known of the file since a source named it, or its content cannot be told from another."""
    told = seen(path)
    if told is None or not told.tag or not told.in_parts or not is_on():
        return None
    known = _ranges.pop(path, None)
    if known is None or known[0][:2] != told[:2]:
        known = told, _made(path, told)
    _ranges[path] = known
    while len(_ranges) > _MOST:
        _ranges.popitem(last=False)
    return known[1]


def opened_ranges(path: str) -> RangeFile | None:
    """A file that is read from its beginning on, with its own place; None as `ranges_of`."""
    told = seen(path)
    return None if told is None or ranges_of(path) is None else RangeFile(_made(path, told))


def _made(path: str, told: Seen) -> Ranges:
    return Ranges((path, told.size, told.tag), told.size, lambda start, stop: _fetched(path, told, start, stop))


def _fetched(path: str, told: Seen, start: int, stop: int) -> bytes:
    """By one request. Raises RemoteError, and SourceError for a file that is another now."""
    system, inner = file_system(path)

    def once() -> bytes:
        found: bytes = system.cat_file(inner, start=start, end=stop)
        if len(found) not in (stop - start, told.size):
            raise ConnectionError(f"{len(found):,} bytes came of {stop - start:,}")
        return found

    found = again(once)
    if time.monotonic() - _asked.setdefault(path, told.at) > ASKED_S:
        system.invalidate_cache()
        latest = Seen.of(again(lambda: system.info(inner)))
        if latest is None or latest[:2] != told[:2]:
            raise SourceError("unreadable", f"{shown(path)} was changed while it was being read")
        _asked[path] = latest.at
    return found
