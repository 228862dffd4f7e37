"""Cache of large text files as Arrow files: a file that is too large for memory is converted once, in the user's cache
folder. Its rows are then read in blocks.

A cached file is found by the paths, sizes and dates of the text files and the options of their source."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from weakref import finalize

from declarative_train.components.data import Table
from declarative_train.components.datasets.arrow import ArrowFormat
from declarative_train.components.datasets.arrow_columns import place_among
from declarative_train.components.datasets.block_table import BlockTable
from declarative_train.core.amounts import amount
from declarative_train.files.cache import cache_path, limit_bytes, make_room, mark_used, stamp
from declarative_train.files.lock import FileLock, hold_lock, open_shared
from declarative_train.files.open_files import format_path, open_file, packing, size_bytes, skips_bad_rows
from declarative_train.files.paths import SourceError

LARGE_BYTES = 1 << 30  # total size of a source's files; larger ones are not read into memory
BLOCK_BYTES = 2 << 20  # size of a record batch in the file; pyarrow reads some dozens ahead
_UNPACKED = 4  # assumed ratio of a file's content to its compressed size
_VALUE_BYTES = 8  # size of a number in memory, which may be only two characters as text
_ABOUT = b"dtrain"  # metadata key of the last record batch, which has no rows

Bad = list[tuple[int, str]]
Schema = Callable[[Sequence[str], Callable[[], None]], Any]
"""Function that returns pyarrow's schema of all files; it calls its second argument from time to
time, as a heartbeat."""
Batches = Callable[[str, Any, Bad], Iterator[Any]]
"""Function that returns the record batches of a file, given the schema of all files and a list for bad rows."""


def is_large(files: Sequence[str]) -> bool:
    """Return whether `files` together are too large to be read into memory. Raises SourceError."""
    return sum(size_bytes(path) * (_UNPACKED if packing(path) else 1) for path in files) > LARGE_BYTES


class TooLargeError(Exception):
    """Error: the content of compressed files needs more memory than a Budget allows."""


class Budget:
    """Memory that may still be used for decompressed files. Reading subtracts the size of the decompressed text and of
    its values. It raises TooLargeError when nothing is left."""

    def __init__(self) -> None:
        self._left = LARGE_BYTES

    def open_decompressed(self, path: str, delimiter: str | None = None) -> Any:
        """Return a stream of the decompressed text of a file. Reading a compressed file subtracts the memory for its
        text and values from the budget, and raises TooLargeError when nothing is left.

        `delimiter`: character between the values of a line, from which the values are counted. If it is None, only the
        memory for the text is subtracted."""
        import pyarrow as pa

        stream = open_decompressed(path)
        return stream if packing(path) is None else pa.PythonFile(_CountedStream(stream, self, delimiter), "r")

    def take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLargeError


def in_memory_or_on_disk(
    files: Sequence[str], in_memory: Callable[[Budget | None], Table], on_disk: Callable[[], Table | None]
) -> Table:
    """Return a table of `files`: in memory if they are small, else on disk. Raises SourceError.

    `in_memory(budget)`  reads the files; raises TooLargeError if they need more than `budget`; None: no limit
    `on_disk()`          converts the files; None: the disk cannot be written, so they are read into memory"""
    if not is_large(files):
        try:
            return in_memory(Budget())
        except TooLargeError:
            pass
    table = on_disk()
    return in_memory(None) if table is None else table


class _CountedStream(io.RawIOBase):
    """Stream of a file's bytes that subtracts from a Budget the memory of the bytes and of the values parsed from
    them."""

    def __init__(self, stream: Any, budget: Budget, delimiter: str | None) -> None:
        self._stream, self._budget, self._delimiter = stream, budget, delimiter
        self._line_bytes: int | None = None if delimiter else 0  # bytes of the values of a line

    def read(self, size: int = -1) -> bytes:
        found: bytes = self._stream.read(BLOCK_BYTES if size < 0 else size)
        if self._line_bytes is None:
            self._line_bytes = _VALUE_BYTES * (1 + found.partition(b"\n")[0].count((self._delimiter or "").encode()))
        self._budget.take(len(found) + self._line_bytes * found.count(b"\n"))
        return found

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()


def open_decompressed(path: str) -> Any:
    """Return a binary stream of a file. If the ending of its name is that of a compressed file, the stream decompresses
    it."""
    import pyarrow as pa

    return pa.input_stream(open_file(path), compression=packing(path))


def convert(files: Sequence[str], kind: str, options: object, schema_of: Schema, batches: Batches) -> Table | None:
    """Return a table of `files` that reads an Arrow file in the cache, which is written first if it is missing. Return
    None if no cache folder can be written, or if a server reports neither date nor tag of a file. Raises SourceError.

    `kind`       format of the files
    `options`    keys of the source that change the rows
    `schema_of`  returns the schema of all files
    `batches`    reads the record batches of a file
    """
    stamps = [stamp(path) for path in files]
    if any(each is None for each in stamps):
        return None
    place = cache_path("converted", kind, list(files), stamps, options, skips_bad_rows(), ending="arrow")
    if place is None or not _can_write(os.path.dirname(place)):
        return None
    lost = False
    while True:
        held = open_shared(place)
        if held is None:
            with hold_lock(f"{place}.part", f"converts {_names_of(files)}") as lock:
                if not os.path.exists(place):  # else another process was first
                    _convert(files, stamps, place, lock, schema_of, batches)
            continue
        mark_used(place)
        try:
            return ConvertedTable(files, place, held)
        except (SourceError, KeyError, ValueError) as error:  # the cached file was cut off: convert again
            if lost:
                message = f"{_names_of(files)} was converted to {place}, which cannot be read: {error}"
                raise SourceError("unreadable", message) from error
            lost = True
            with suppress(OSError):
                os.remove(place)
            os.close(held)


def _can_write(folder: str) -> bool:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _names_of(files: Sequence[str]) -> str:
    return format_path(files[0]) if len(files) == 1 else f"{len(files):,} files"


def _convert(
    files: Sequence[str], stamps: Sequence[object], place: str, lock: FileLock, schema_of: Schema, batches: Batches
) -> None:
    import pyarrow as pa
    from pyarrow import ipc

    begun, part = time.monotonic(), lock.path
    what, whole = _names_of(files), amount(sum(map(size_bytes, files)), "B")
    print(f"dtrain: {what}, {whole}, is too large for memory: converting it once", file=sys.stderr)
    starts: list[int] = []
    bad: dict[str, Bad] = {}
    num_rows = 0
    try:
        schema = schema_of(files, lock.touch)
        with pa.OSFile(part, "wb") as file, ipc.new_file(file, schema) as writer:
            for path in files:
                starts.append(num_rows)
                gone: Bad = bad.setdefault(path, [])
                for batch in batches(path, schema, gone):
                    writer.write_batch(batch)
                    num_rows += batch.num_rows
                    lock.touch()
            about = json.dumps({"starts": starts, "bad": {path: rows for path, rows in bad.items() if rows}})
            nothing = pa.RecordBatch.from_pylist([], schema=schema)
            writer.write_batch(nothing, custom_metadata={_ABOUT: about.encode()})
        for path, before in zip(files, stamps, strict=True):
            if stamp(path, refresh=True) != before:
                raise SourceError("unreadable", f"{format_path(path)} changed while it was being read")
        size = os.path.getsize(part)
        os.replace(part, place)
    except OSError as error:
        message = f"cannot convert {what} to {place}: {error.strerror or error}"
        raise SourceError(
            "unreadable", message, help="free disk space, or set XDG_CACHE_HOME to a disk with enough"
        ) from error
    make_room(place)
    report = f"dtrain: {what}: {num_rows:,} rows, converted in {time.monotonic() - begun:.0f} s to {place}"
    if size > limit_bytes():
        report += f"; it takes {amount(size, 'B')}: set DTRAIN_CACHE_GB higher, else it may be removed after the run"
    print(report, file=sys.stderr)


class ConvertedTable(BlockTable):
    """Table of the user's `files`, which were converted to an Arrow file in the cache. `place`: path of the Arrow file.
    `held`: its open file descriptor, which is closed together with the table."""

    def __init__(self, files: Sequence[str], place: str, held: int) -> None:
        import pyarrow as pa
        from pyarrow import ipc

        super().__init__([place], ArrowFormat())
        with pa.OSFile(place) as source:
            reader = ipc.open_file(source)
            last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
            about = json.loads(last.custom_metadata[_ABOUT])
        self.files = tuple(files)
        self.fingerprint = place  # its name is a hash of the files, their sizes and dates
        self._rows_of: list[int] = about["starts"]
        self._gone = {path: sorted(row for row, _ in rows) for path, rows in about["bad"].items()}
        self.skipped = tuple(
            (f"row {row + 1} of {format_path(path)}", why)
            for path, rows in about["bad"].items()
            for row, why in rows
            if why
        )
        finalize(self, os.close, held)

    def place(self, row: int) -> str:
        return place_among(self.files, self._rows_of, self._gone, row)
