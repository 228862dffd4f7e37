"""New rows from files or from memory. They are read in pieces, so that only a few blocks of a file are in memory.

A csv is read as text: the type of a value depends on the field that reads it (`fields.py`), and not on the other values
of its column."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from declarative_train.components.data import MESSAGES, Table
from declarative_train.components.datasets import DATASETS, endings, endings_in_folders
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.files.open_files import expand, format_path, packing
from declarative_train.files.paths import SourceError
from declarative_train.inference.input import Input, InputChunk, InputError, Piece, Pieces, make_row_namer, slices
from declarative_train.inference.text_files import csv_input, jsonl_input
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import pyarrow as pa


STDIN, STDIN_TITLE = "-", "standard input"
_NEVER = frozenset({".bin", ".distcp", ".json", ".onnx", ".pt", ".py", ".safetensors", ".yaml", ".yml"})  # no tables
_FILE_VALUES = 1 << 16  # number of values that a file in a column counts as
_CHUNK_ROWS = 1 << 15
_CHUNK_VALUES = 1 << 22


def open_input(
    paths: str | Sequence[str],
    source: Mapping[str, object],
    title: str | None = None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Input:
    """Return the rows of files, of a folder of images, or of a csv on standard input. Raises UsageError and InputError.

    `paths`   paths, globs or URLs, read in order; `-` is standard input
    `source`  the run's `data.source`: the format if file names do not give it, and the dialect of csv
    `title`   name of a single csv in messages
    `names`   {column of a folder or of image files: its new name}
    """
    given = [paths] if isinstance(paths, str) else list(paths)
    titled = title
    title = format_path(given[0]) if len(given) == 1 else f"{format_path(given[0])} and {len(given) - 1} more"
    if STDIN in given:
        if len(given) > 1:
            raise UsageError("`-` is standard input, and cannot be combined with files")
        return csv_input([spool_stdin()], STDIN_TITLE, source, STDIN_TITLE)
    if len(given) == 1 and os.path.isdir(given[0]):
        kind = _kind_of_folder(given[0], source)
        if kind is None:
            hint = "name the files of a table, such as with a glob: 'new/*.csv'"
            raise UsageError(f"{title} is a folder without pictures; help: {hint}")
        return _open_table(kind, given, source, given, title, names)
    files = files_of(given)
    kinds = {file: kind_of_file(file, source) for file in files}
    kind = kinds[files[0]]
    if other := next((file for file in files if kinds[file] != kind), None):
        raise UsageError(
            f"{format_path(files[0])} is {kind} and {format_path(other)} is {kinds[other]}: give files of one kind"
        )
    if kind == "csv":
        return csv_input(files, titled or title, source, titled)
    if kind == "jsonl":
        return jsonl_input(files, title)
    return _open_table(kind, files, source, files, title, names)


def _open_table(
    kind: str,
    paths: Sequence[str],
    source: Mapping[str, object],
    files: Sequence[str],
    title: str,
    names: Mapping[str, str],
) -> Input:
    """Return the rows of files as an Input. `kind`: type of source that reads the files. `paths`: the files, or their
    folder. `source`: the run's `data.source`. `files`: the value of `Input.files`. `title`: name of the input in
    messages. `names`: {column: new name}, used only if each row is a file, such as an image. Raises InputError."""
    try:
        table = DATASETS[kind].open_files(paths, source)
    except SourceError as error:
        raise InputError(f"{error}{f'; help: {error.help}' if error.help else ''}") from None
    has_files = DATASETS[kind].files_column is not None
    called = {name: new for name, new in names.items() if has_files and name in table.columns}
    return _table_input(table, files, title, is_array=kind == "npy", called=called)


def _kind_of_folder(folder: str, source: Mapping[str, object]) -> str | None:
    """Return the type of source that reads the files in a folder. The first file with a known ending decides. Without
    such a file, return the type of the run's `source` if it reads folders, otherwise None."""
    known = endings_in_folders()
    for _, _, names in os.walk(folder):
        for name in names:
            if (ending := os.path.splitext(name)[1].lower()) in known:
                return endings()[ending]
    own = str(source.get("type"))
    return own if own in DATASETS and DATASETS[own].files_column is not None else None


def files_of(paths: Sequence[str]) -> list[str]:
    """Return all files that match the given paths and globs. Raises UsageError if there are none."""
    try:
        return expand(paths)
    except SourceError as error:
        hint = did_you_mean(error.name, error.known) if error.known and error.problem == "not_found" else error.help
        raise UsageError(f"{error}{f'; help: {hint}' if hint else ''}") from None


def of_table(table: pa.Table) -> Input:
    """Return the rows of an Arrow table in memory as an Input."""
    from declarative_train.components.datasets.arrow_columns import without_views

    table = without_views(table)

    def pieces(columns: Sequence[str], most: int | None = None) -> Pieces:
        return slices(table.num_rows, _CHUNK_ROWS if most is None else min(_CHUNK_ROWS, most))

    def read_piece(piece: Piece, columns: Sequence[str]) -> InputChunk:
        rows = table.select(list(columns)).slice(piece.start, piece.num_rows)
        values = {name: rows.column(name).combine_chunks() for name in columns}
        return InputChunk("the frame", piece.start, piece.num_rows, values, make_row_namer("the frame", piece.start))

    return Input("the frame", table.column_names, pieces, read_piece)


def kind_of_file(file: str, source: Mapping[str, object]) -> str:
    name = file
    while packing(name) is not None:
        name = name.rpartition(".")[0]
    ending = os.path.splitext(name)[1].lower()
    if (kind := endings().get(ending)) is not None:
        return kind
    own = str(source.get("type"))
    if own in endings().values() and DATASETS[own].files_column is None and ending not in _NEVER:
        return own
    raise UsageError(f"the name of {format_path(file)} does not show its format; help: let it end in .csv, .jsonl, "
                     ".parquet, .db, .npy, .npz, or like an image")  # fmt: skip


def spool_stdin() -> str:
    """Copy standard input to a temporary file, which can be read several times, and return its path. The file is
    deleted when this process exits."""
    import atexit

    handle, path = tempfile.mkstemp(prefix="dtrain-stdin-", suffix=".csv")
    atexit.register(Path(path).unlink, missing_ok=True)
    with open(handle, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


# --- tables that can be read by row: parquet, npy, pictures


def _table_input(
    table: Table, files: Sequence[str], title: str, *, is_array: bool = False, called: Mapping[str, str] | None = None
) -> Input:
    """Return the rows of an opened table as an Input. `title`: name of the table in messages. `is_array`: each file has
    a single array, which is the only column. `called`: a dict from columns of the table to new names."""
    columns_by_name = {name: name for name in table.columns} | {new: old for old, new in (called or {}).items()}
    for old, new in (called or {}).items():
        if old != new:
            columns_by_name.pop(old, None)
    names = list(columns_by_name)
    dtypes = {name: table.columns[column].dtype for name, column in columns_by_name.items()}
    large = [name for name, dtype in dtypes.items() if dtype == "bytes"]

    def pieces(columns: Sequence[str], most: int | None = None) -> Pieces:
        held = {_column_to_read(names, asked, is_array) for asked in columns}
        shapes = {name: table.columns[columns_by_name[name]].shape for name in held}
        width = sum(_FILE_VALUES if name in large else int(np.prod(shape)) for name, shape in shapes.items())
        size = max(1, min(_CHUNK_ROWS, _CHUNK_VALUES // max(width, 1)))
        return slices(table.num_rows, size if most is None else min(size, most))

    def read_piece(piece: Piece, columns: Sequence[str]) -> InputChunk:
        held = {asked: _column_to_read(names, asked, is_array) for asked in columns}
        rows = slice(piece.start, piece.start + piece.num_rows)
        try:
            values = table.read(list(dict.fromkeys(columns_by_name[name] for name in held.values())), rows)
        except SourceError as error:
            raise InputError(str(error)) from None
        found = {asked: values[columns_by_name[name]] for asked, name in held.items()}
        messages = frozenset(asked for asked, name in held.items() if dtypes[name] == MESSAGES)
        return InputChunk(title, piece.start, piece.num_rows, found, partial(_place_in, table, piece.start), messages)

    return Input(title, [*names, *table.left_out], pieces, read_piece, files, large=large)


def _place_in(table: Table, start: int, row: int) -> str:
    return table.place(start + row)


def _column_to_read(names: Sequence[str], asked: str, is_array: bool) -> str:
    """Return the name of the column in new files that is read in place of the run's column `asked`. It is `asked`
    itself, or the only column if the files have a single array (`is_array`, such as `new.npy`). `names`: columns of the
    new files."""
    return names[0] if is_array and len(names) == 1 else asked
