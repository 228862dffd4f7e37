"""Source that reads safetensors files as a table. Its columns are the tensors, mapped into memory or read by range."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Literal

from declarative_train.components.data import Column, FilesDataset, Table
from declarative_train.core.amounts import format_count
from declarative_train.files.cache import cache_path, stamp
from declarative_train.files.open_files import (
    OpenFiles,
    by_piece,
    expand,
    format_path,
    local_path,
    map_bytes,
    read_bytes,
    size_bytes,
)
from declarative_train.files.paths import SourceError
from declarative_train.files.weight_files import TensorPlace, read_places

if TYPE_CHECKING:
    import numpy as np

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "?"}
_DTYPES |= {f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)}
_BLOCK_BYTES = 4 << 20  # size of adjacent rows that are read together for block shuffling
_SPARSE = 8  # read single rows of a remote file if fewer than one in so many is wanted


class SafetensorsDataset(FilesDataset):
    """Rows of tensors in safetensors files. Each tensor is a column, whose dimension 0 counts the rows. Several files
    are one table, file after file. A folder means all files `*.safetensors` in it.

    Local files are mapped, not read. bfloat16 becomes float32, without loss. A tensor is not a column if its dimension
    0 differs from that of most tensors.
    """

    type: Literal["safetensors"] = "safetensors"

    def files(self) -> list[str]:
        return expand([f"{path.rstrip('/')}/*.safetensors" if _is_folder(path) else path for path in self.paths])

    def open(self) -> Table:
        return SafetensorsTable(self.files())


def _is_folder(path: str) -> bool:
    local = local_path(path)
    return path.endswith("/") if local is None else os.path.isdir(local)


class SafetensorsTable(Table):
    blocks_may_be_cut = True

    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        from declarative_train.components.datasets.arrow_columns import check_same_columns

        self.files = tuple(files)
        self._maps = OpenFiles(map_bytes)
        self._places = [_read_places(path) for path in files]
        first, self._starts = self._places[0], [0]
        left_out: dict[str, str] = {}
        for path, places in zip(files, self._places, strict=True):
            check_same_columns(files[0], list(first), path, list(places))
            num_rows = Counter(place.shape[0] for place in places.values() if place.shape).most_common(1)
            self._starts.append(self._starts[-1] + (num_rows[0][0] if num_rows else 0))
            left_out |= _find_left_out(places, self._starts[-1] - self._starts[-2])
        for path, places in zip(files, self._places, strict=True):
            for name in places.keys() - left_out.keys():
                if places[name][:2] != (places[name].shape[:1] + first[name].shape[1:], first[name].dtype):
                    message = (
                        f"`{name}` holds {_kind(places[name])} in {format_path(path)} and {_kind(first[name])} in "
                    )
                    raise SourceError("different_columns", f"{message}{format_path(files[0])}")
        self.left_out = left_out
        self.columns = {
            name: Column(name, _name(place.dtype), place.shape[1:])
            for name, place in first.items()
            if name not in left_out
        }
        self.num_rows = self._starts[-1]
        row_bytes = sum(_row_bytes(first[name]) for name in self.columns)
        step = max(1, _BLOCK_BYTES // max(row_bytes, 1))
        blocks = [np.arange(start, stop, step) for start, stop in pairwise(self._starts)]
        self.blocks = np.concatenate([*blocks, [self.num_rows]]).astype(np.int64)
        stamps = [stamp(path) for path in files]
        self.fingerprint = None if None in stamps else cache_path("safetensors", list(files), stamps)

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        return sum(_row_bytes(self._places[0][name]) for name in columns) * self.num_rows

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {name: self._read(name, rows) for name in columns}

    def _read(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        import numpy as np

        column = self.columns[name]
        if not isinstance(rows, slice):
            found = np.empty((len(rows), *column.shape), column.dtype)
            for file, places, inside in by_piece(self._starts, rows):
                found[places] = self._pick(file, name, inside)
            return found
        start, stop, _ = rows.indices(self.num_rows)
        file = bisect_right(self._starts, start) - 1
        if start < stop <= self._starts[file + 1]:
            return self._run(file, name, start - self._starts[file], stop - self._starts[file])
        found = np.empty((max(stop - start, 0), *column.shape), column.dtype)  # views would keep the files open
        begin = start
        while start < stop:
            end = min(self._starts[file + 1], stop)
            found[start - begin : end - begin] = self._run(
                file, name, start - self._starts[file], end - self._starts[file]
            )
            start, file = end, file + 1
        return found

    def _run(self, file: int, name: str, start: int, stop: int) -> np.ndarray:
        """Return the rows from `start` to `stop` of the tensor `name` in file number `file`."""
        import numpy as np

        path, place = self.files[file], self._places[file][name]
        size = _row_bytes(place)
        begin, end = place.begin + start * size, place.begin + stop * size
        is_here = local_path(path) is not None
        content = self._maps.get(path)[begin:end] if is_here else np.frombuffer(read_bytes(path, begin, end), np.uint8)
        if len(content) < end - begin:
            raise SourceError("unreadable", f"{format_path(path)} ends within the tensor `{name}`")
        return _values(content.view(_DTYPES[place.dtype]).reshape(stop - start, *place.shape[1:]), place.dtype)

    def _pick(self, file: int, name: str, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        first, last = int(rows.min()), int(rows.max()) + 1
        if local_path(self.files[file]) is not None:
            place = self._places[file][name]
            content = self._maps.get(self.files[file])[place.begin : place.end].view(_DTYPES[place.dtype])
            return _values(content.reshape(place.shape)[rows], place.dtype)
        if last - first <= _SPARSE * len(rows):
            return np.asarray(self._run(file, name, first, last)[rows - first])
        return np.concatenate([self._run(file, name, row, row + 1) for row in rows.tolist()])

    def place(self, row: int) -> str:
        from declarative_train.components.datasets.arrow_columns import place

        return place(self.files, self._starts, row)


def _read_places(path: str) -> dict[str, TensorPlace]:
    """Read the header of a safetensors file. Return {name of a tensor: its dtype, shape and range of bytes}. Raises
    SourceError."""
    try:
        found = read_places(lambda start, stop: read_bytes(path, start, stop), size_bytes(path))
        for name, place in found.items():
            if place.dtype in _DTYPES and prod(place.shape[:1]) * _row_bytes(place) != place.end - place.begin:
                raise ValueError(f"the bytes of the tensor `{name}` do not match its shape")
    except ValueError as error:
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {error}") from error
    if not found:
        raise SourceError("unreadable", f"{format_path(path)} holds no tensor")
    return found


def _find_left_out(places: Mapping[str, TensorPlace], num_rows: int) -> dict[str, str]:
    found = {}
    for name, place in places.items():
        if place.dtype not in _DTYPES:
            found[name] = f"it holds {place.dtype}, which fields cannot take"
        elif not place.shape:
            found[name] = "it is a single value"
        elif place.shape[0] != num_rows:
            found[name] = f"it has {format_count(place.shape[0], 'row')} where most have {num_rows:,}"
    return found


def _row_bytes(place: TensorPlace) -> int:
    import numpy as np

    return prod(place.shape[1:]) * np.dtype(_DTYPES[place.dtype]).itemsize


def _name(dtype: str) -> str:
    import numpy as np

    return "float32" if dtype == "BF16" else np.dtype(_DTYPES[dtype]).name


def _values(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Return stored values as an array of a numpy type. bfloat16, for which numpy has no type, becomes float32 by
    adding 16 zero bits."""
    import numpy as np

    return (stored.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else stored


def _kind(place: TensorPlace) -> str:
    return f"{place.dtype} of ({', '.join(map(str, place.shape[1:]))})"
