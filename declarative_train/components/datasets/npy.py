"""NumPy files as a source. The columns of its table are the arrays of the files; they are memory-mapped if the file
allows it.

Opening the source reads only headers, so arrays that no field uses are never read. Only a remote `.npy` file is read as
a whole."""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from declarative_train.components.data import Column, FilesDataset, Table
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.files.open_files import (
    OpenFiles,
    by_piece,
    check_beginning,
    format_path,
    local_path,
    map_bytes,
    open_file,
)
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

_CHECKED_BYTES = 2 << 30  # mapped arrays of an archive up to this size are checked against their checksum before use
_OBJECTS = "it holds Python objects, which are never loaded"


class NpyDataset(FilesDataset):
    """Rows of NumPy arrays: dimension 0 of an array counts the rows.

    `.npz`: the arrays of the file are the columns, under their names. Several files are one table, file after file.
    `.npy`: each file is one column with the name of the file (`x.npy` is `x`); a structured array has one column for
    each of its fields. Local files that are not compressed are mapped into memory, not read. Compressed arrays are
    decompressed when a field uses them. The checksums of arrays in an archive are verified, except for mapped arrays of
    more than 2 GiB."""

    type: Literal["npy"] = "npy"

    def open(self) -> Table:
        from declarative_train.components.datasets.arrow_columns import check_same_columns

        files = self.files()
        kinds = {path.endswith(".npz") for path in files}
        if len(kinds) == 2:
            raise SourceError(
                "different_columns", ".npz files are joined by rows and .npy files by columns: use one kind"
            )
        pieces = [_load(path) for path in files]
        if kinds == {False}:
            all_arrays: dict[str, StoredArray | str] = {}
            for path, arrays in zip(files, pieces, strict=True):
                if twice := all_arrays.keys() & arrays.keys():
                    raise SourceError(
                        "different_columns", f"{format_path(path)}: another file has the column `{min(twice)}`"
                    )
                all_arrays.update(arrays)
            return ArrayTable(files, [all_arrays])
        for path, arrays in zip(files[1:], pieces[1:], strict=True):
            check_same_columns(files[0], list(pieces[0]), path, list(arrays))
        return ArrayTable(files, pieces)


class StoredArray(NamedTuple):
    """Array in a file: its path, shape and dtype, and functions that load its values.

    `mapped`  takes the bytes of the file, mapped into memory, and returns a view; None: the file cannot be mapped
    `check`   takes the same bytes, raises SourceError if their checksum differs; None: there is no checksum
    `read`    without `mapped`: returns the values or raises SourceError"""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[], np.ndarray] | None = None
    mapped: Callable[[np.ndarray], np.ndarray] | None = None
    check: Callable[[np.ndarray], None] | None = None

    @property
    def num_rows(self) -> int:
        return self.shape[0]


class ArrayTable(Table):
    """Table whose columns are the arrays of files. Arrays of the same name in several files are concatenated by rows.

    `pieces`: for each file, {name: array}, with the reason as text in place of an array that cannot be a column. A file
    has as many rows as most of its arrays. Arrays with another number of rows, such as a mean, are left out.
    """

    def __init__(self, files: Sequence[str], pieces: Sequence[Mapping[str, StoredArray | str]]) -> None:
        self.files = tuple(files)
        self._maps = OpenFiles(map_bytes)
        self._kept: dict[tuple[int, str], np.ndarray] = {}
        self._checked: set[tuple[int, str]] = set()
        self._starts = [0]
        self._pieces: list[dict[str, StoredArray]] = []
        left_out: dict[str, str] = {}
        for piece in pieces:
            arrays = {name: array for name, array in piece.items() if isinstance(array, StoredArray)}
            lengths = Counter(array.num_rows for array in arrays.values() if array.shape)
            num_rows = max(lengths, key=lambda length: (lengths[length], length)) if lengths else 0
            left_out |= {name: reason for name, a in piece.items() if (reason := _no_column(a, num_rows)) is not None}
            self._starts.append(self._starts[-1] + num_rows)
            self._pieces.append(arrays)
        first = self._pieces[0]
        for path, arrays in zip(files, self._pieces, strict=False):
            for name in arrays.keys() - left_out.keys():
                if arrays[name].shape[1:] != first[name].shape[1:]:
                    raise SourceError(
                        "different_columns",
                        f"`{name}` holds {_shape(arrays[name])} in {format_path(path)} and {_shape(first[name])} in "
                        f"{format_path(files[0])}",
                    )
        self.left_out = left_out
        self.columns = {
            name: _column(name, [piece[name] for piece in self._pieces]) for name in first if name not in left_out
        }
        self.num_rows = self._starts[-1]

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {name: self._read(name, rows) for name in columns}

    def _read(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        import numpy as np

        dtype = self.columns[name].dtype
        if len(self._pieces) == 1:
            return _plain(self._array(0, name)[rows], dtype)
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.num_rows)
            found = np.empty((max(stop - start, 0), *self.columns[name].shape), dtype)
            place, piece = 0, bisect_right(self._starts, start) - 1
            while place < len(found):  # copied piece by piece: views would keep all files open
                begin = start + place - self._starts[piece]
                part = self._array(piece, name)[begin : begin + len(found) - place]
                found[place : place + len(part)] = _plain(part, dtype)
                place, piece = place + len(part), piece + 1
            return found
        found = np.empty((len(rows), *self.columns[name].shape), dtype)
        for piece, places, inside in by_piece(self._starts, rows):
            found[places] = _plain(self._array(piece, name)[inside], dtype)
        return found

    def _array(self, piece: int, name: str) -> np.ndarray:
        """Return all values of the array `name` in the file with index `piece`, from memory or as a view of the
        memory-mapped file. Raises SourceError."""
        stored, key = self._pieces[piece][name], (piece, name)
        if stored.mapped is None:
            if key not in self._kept:
                assert stored.read is not None
                self._kept[key] = stored.read()
            return self._kept[key]
        values = self._maps.get(stored.path)
        if stored.check is not None and key not in self._checked:
            stored.check(values)
            self._checked.add(key)
        return stored.mapped(values)

    def place(self, row: int) -> str:
        from declarative_train.components.datasets.arrow_columns import place

        return place(self.files if len(self._pieces) > 1 else self.files[:1], self._starts, row)


def _column(name: str, arrays: Sequence[StoredArray]) -> Column:
    import numpy as np

    kind = arrays[0].dtype
    if kind.kind in "US":
        return Column(name, "object", arrays[0].shape[1:])
    if kind.kind == "M":
        return Column(name, "datetime64[ns]", arrays[0].shape[1:])
    dtype = np.result_type(*{array.dtype for array in arrays})
    return Column(name, dtype.newbyteorder("=").name, arrays[0].shape[1:])


def _no_column(array: StoredArray | str, num_rows: int) -> str | None:
    if isinstance(array, str):
        return array
    if not array.shape:
        return "it is a single value"
    if array.dtype.kind not in "biufUSM":
        return f"it holds {array.dtype}, which is not a number, a text or a date"
    if array.num_rows != num_rows:
        return f"it has {format_count(array.num_rows, 'row')} where most have {num_rows:,}"
    return None


def _plain(array: np.ndarray, dtype: str) -> np.ndarray:
    import numpy as np

    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    return np.asarray(array, dtype)


def _shape(array: StoredArray) -> str:
    return f"({', '.join(map(str, array.shape[1:]))})"


def _load(path: str) -> Mapping[str, StoredArray | str]:
    """Open a file, and return a dict from array name to array. Values are read later, except those of a remote `.npy`
    file. A member of an archive that is no array gets a text with the reason as its value. Raises SourceError."""
    with _as_source_error(path):
        if path.endswith(".npz"):
            check_beginning(path, "an archive of NumPy arrays", b"PK\x03\x04")
            with open_file(path) as file, zipfile.ZipFile(file) as archive:
                return {
                    member.filename.removesuffix(".npy"): _member(path, file, archive, member)
                    for member in archive.infolist()
                }
        check_beginning(path, "a NumPy array", b"\x93NUMPY")
        return _load_npy(path)


@contextmanager
def _as_source_error(path: str) -> Iterator[None]:
    """Convert exceptions of numpy and zipfile in the `with` block into SourceError."""
    try:
        yield
    except (ValueError, OSError, EOFError, RuntimeError, NotImplementedError, zlib.error, zipfile.BadZipFile) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        if "allow_pickle" in reason or "Python objects" in reason:
            reason = _OBJECTS
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {reason}") from error


def _load_npy(path: str) -> dict[str, StoredArray | str]:
    import numpy as np

    local = local_path(path)
    array = np.load(local, mmap_mode="c") if local is not None else np.load(open_file(path))
    name = re.sub(r"\W", "_", os.path.basename(path).removesuffix(".npy"))
    found: dict[str, StoredArray | str] = {}
    for part in array.dtype.names or (None,):
        values = array if part is None else array[part]
        stored = StoredArray(path, values.shape, values.dtype)
        if isinstance(array, np.memmap):
            order: Any = "C" if array.flags.c_contiguous else "F"
            place = partial(_in_place, array.offset, array.dtype, array.shape, order, part)
            found[part or name] = stored._replace(mapped=place)
        else:
            found[part or name] = stored._replace(read=values.view)
    return found


def _in_place(
    begin: int,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    order: Literal["C", "F"],
    part: str | None,
    content: np.ndarray,
) -> np.ndarray:
    """Return an array as a view of a file's bytes, without a copy. `content`: all bytes of the file. `begin`: index of
    the array's first byte. `part`: if the array is structured, the name of the one field to return; None: the whole
    array."""
    flat = content[begin : begin + dtype.itemsize * TensorSpec(shape).num_elements].view(dtype)
    found = flat.reshape(shape, order=order)
    return found if part is None else found[part]


def _member(path: str, file: Any, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> StoredArray | str:
    """Return the array in the member `member` of an archive (`.npz`), described by its header. If the member is not an
    array, return a text with the reason."""
    from numpy.lib import format as npy

    headers: Any = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with archive.open(member) as stream:
        if stream.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
            return "it is not an array"
        version = tuple(stream.read(2))
        if version not in headers:  # for part names outside Latin-1
            array = _decompress(path, member.filename)
            return StoredArray(path, array.shape, array.dtype, array.view)
        shape, by_columns, dtype = headers[version](stream)
        header_bytes = stream.tell()
    if dtype.hasobject:
        return _OBJECTS
    stored = StoredArray(path, shape, dtype, partial(_decompress, path, member.filename))
    size = dtype.itemsize * TensorSpec(shape).num_elements
    if header_bytes + size > member.file_size:
        raise SourceError(
            "unreadable", f"cannot read {format_path(path)}: `{member.filename}` ends before its values do"
        )
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 or local_path(path) is None or not size:
        return stored
    begin = _begin(file, member)
    place = partial(_in_place, begin + header_bytes, dtype, shape, "F" if by_columns else "C", None)
    return stored._replace(mapped=place, check=partial(_check, path, member, begin))


def _begin(file: Any, member: zipfile.ZipInfo) -> int:
    """Return the offset in the file at which the content of an uncompressed archive member begins.

    The content follows a local header of 30 bytes, a name and an extra field. Name and extra field may have other
    lengths than in the central directory: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, 4.3.7."""
    file.seek(member.header_offset + 26)
    lengths = file.read(4)
    return member.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")


def _check(path: str, member: zipfile.ZipInfo, begin: int, content: np.ndarray) -> None:
    """Raise SourceError if the bytes of an archive member do not match its checksum. Members of more than 2 GiB are not
    checked. `content`: the bytes of the archive. `begin`: index in `content` of the member's first byte."""
    if member.file_size <= _CHECKED_BYTES and zlib.crc32(content[begin : begin + member.file_size].data) != member.CRC:
        reason = f"`{member.filename}` does not match its checksum"
        message = f"cannot read {format_path(path)}: {reason}"
        raise SourceError("unreadable", message, help="the file is damaged: write it again")


def _decompress(path: str, member: str) -> np.ndarray:
    """Read an array from an archive, decompressed. `member`: its file name in the archive. Raises SourceError, also if
    its checksum is wrong."""
    import numpy as np

    with (
        _as_source_error(path),
        open_file(path) as file,
        zipfile.ZipFile(file) as archive,
        archive.open(member) as stream,
    ):
        return np.lib.format.read_array(stream, allow_pickle=False)
