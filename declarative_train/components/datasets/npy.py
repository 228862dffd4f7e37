"""NumPy files -> a table of their arrays, memory-mapped where the file allows it."""

from __future__ import annotations

import os
import re
import zipfile
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.components.component import Column, Dataset, SourceError, Table
from declarative_train.components.datasets.files import (
    Paths,
    as_tuple,
    check_beginning,
    expand,
    local_path,
    open_file,
    shown,
)
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    import numpy as np


class NpyDataset(Dataset):
    """Rows of NumPy arrays: dimension 0 counts the rows.

    `.npz`: the arrays of the file are the columns, under their names; several files are one table, file after file.
    `.npy`: each file is one column, called like the file (`x.npy` is `x`), beside the others; the parts of a
    structured array are columns of their own. Files on this machine that are not compressed are mapped, not read.
    """

    type: Literal["npy"] = "npy"
    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return as_tuple(self.path)

    def open(self) -> Table:
        from declarative_train.components.datasets.arrow import check_same_columns

        files = expand(self.paths)
        kinds = {path.endswith(".npz") for path in files}
        if len(kinds) == 2:
            raise SourceError("different_columns", ".npz files are stacked and .npy files stand side by side: not both")
        pieces = [_load(path) for path in files]
        if kinds == {False}:
            beside: dict[str, np.ndarray] = {}
            for path, arrays in zip(files, pieces, strict=True):
                if twice := beside.keys() & arrays.keys():
                    raise SourceError("different_columns", f"{shown(path)}: there is a column `{min(twice)}` already")
                beside.update(arrays)
            return ArrayTable(files, [beside])
        for path, arrays in zip(files[1:], pieces[1:], strict=True):
            check_same_columns(files[0], list(pieces[0]), path, list(arrays))
        return ArrayTable(files, pieces)


class ArrayTable(Table):
    """Arrays side by side in each piece, pieces one below the other.

    Arrays whose length is not that of most others (a mean, a list of names) are no columns.
    """

    def __init__(self, files: Sequence[str], pieces: Sequence[dict[str, np.ndarray]]) -> None:
        self.files = tuple(files)
        self._pieces = list(pieces)
        self._starts = [0]
        left_out: dict[str, str] = {}
        for piece in pieces:
            lengths = Counter(len(array) for array in piece.values() if array.ndim)
            num_rows = max(lengths, key=lambda length: (lengths[length], length)) if lengths else 0
            left_out |= {name: reason for name, a in piece.items() if (reason := _no_column(a, num_rows)) is not None}
            self._starts.append(self._starts[-1] + num_rows)
        for path, piece in zip(files, pieces, strict=False):
            for name in piece.keys() - left_out.keys():
                if piece[name].shape[1:] != pieces[0][name].shape[1:]:
                    raise SourceError(
                        "different_columns",
                        f"`{name}` holds {_shape(piece[name])} in {shown(path)} and {_shape(pieces[0][name])} in "
                        f"{shown(files[0])}",
                    )
        self.left_out = left_out
        self.columns = {
            name: _column(name, [piece[name] for piece in pieces]) for name in pieces[0] if name not in left_out
        }
        self.num_rows = self._starts[-1]

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {name: self._read(name, rows) for name in columns}

    def _read(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        import numpy as np

        dtype = self.columns[name].dtype
        if len(self._pieces) == 1:
            return _plain(self._pieces[0][name][rows], dtype)
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.num_rows)
            parts = [
                piece[name][max(start - begin, 0) : max(stop - begin, 0)][: end - begin]
                for piece, begin, end in zip(self._pieces, self._starts, self._starts[1:], strict=False)
            ]
            return np.concatenate([_plain(part, dtype) for part in parts])
        found = np.empty((len(rows), *self.columns[name].shape), dtype)
        for piece, begin, end in zip(self._pieces, self._starts, self._starts[1:], strict=False):
            inside = (rows >= begin) & (rows < end)
            found[inside] = _plain(piece[name][rows[inside] - begin], dtype)
        return found

    def place(self, row: int) -> str:
        from declarative_train.components.datasets.arrow import place

        return place(self.files if len(self._pieces) > 1 else self.files[:1], self._starts, row)


def _column(name: str, arrays: Sequence[np.ndarray]) -> Column:
    import numpy as np

    kind = arrays[0].dtype
    if kind.kind in "US":
        return Column(name, "object", arrays[0].shape[1:])
    if kind.kind == "M":
        return Column(name, "datetime64[ns]", arrays[0].shape[1:])
    return Column(name, np.result_type(*arrays).newbyteorder("=").name, arrays[0].shape[1:])


def _no_column(array: np.ndarray, num_rows: int) -> str | None:
    if not array.ndim:
        return "it is a single value"
    if array.dtype.kind not in "biufUSM":
        return f"it holds {array.dtype}, which is no number, text or date"
    if len(array) != num_rows:
        return f"it has {counted(len(array), 'row')} where most have {num_rows:,}"
    return None


def _plain(array: np.ndarray, dtype: str) -> np.ndarray:
    import numpy as np

    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    return np.asarray(array, dtype)


def _shape(array: np.ndarray) -> str:
    return f"({', '.join(map(str, array.shape[1:]))})"


def _load(path: str) -> dict[str, np.ndarray]:
    """The arrays of a file by name. Raises SourceError."""
    import numpy as np

    local = local_path(path)
    try:
        if path.endswith(".npz"):
            check_beginning(path, "an archive of NumPy arrays", b"PK\x03\x04")
            return _load_npz(path, local)
        check_beginning(path, "a NumPy array", b"\x93NUMPY")
        array = np.load(local, mmap_mode="c") if local is not None else np.load(open_file(path))
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise SourceError("unreadable", f"cannot read {shown(path)}: {_explained(error)}") from error
    if array.dtype.names is not None:
        return {name: array[name] for name in array.dtype.names}
    name = os.path.basename(path).removesuffix(".npy")
    return {re.sub(r"\W", "_", name): array}


def _load_npz(path: str, local: str | None) -> dict[str, np.ndarray]:
    import numpy as np

    if local is None:
        with np.load(open_file(path), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    found = {}
    with zipfile.ZipFile(local) as archive, np.load(local, allow_pickle=False) as file:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            mapped = _mapped(local, member) if member.compress_type == zipfile.ZIP_STORED else None
            found[name] = mapped if mapped is not None else file[name]
    return found


def _mapped(path: str, member: zipfile.ZipInfo) -> np.ndarray | None:
    """A stored member of an .npz file, in place: it is an .npy file at some offset. None: it cannot be mapped.

    The local header before it (30 bytes, then name and extra field) may differ in length from the central one:
    https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7.
    """
    import numpy as np
    from numpy.lib import format as npy

    with open(path, "rb") as file:
        file.seek(member.header_offset + 26)
        lengths = file.read(4)
        file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), os.SEEK_CUR)
        version = npy.read_magic(file)
        header: Any = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if header is None:
            return None
        shape, fortran, dtype = header(file)
        if dtype.hasobject or not all(shape):
            return None
        return np.memmap(path, dtype, "c", file.tell(), shape, "F" if fortran else "C")


def _explained(error: BaseException) -> str:
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it holds Python objects, which are never loaded"
    return (str(error) or type(error).__name__).splitlines()[0][:200]
