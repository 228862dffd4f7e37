"""Output of predictions to a file or to standard output, as csv, Parquet or JSON lines, piece by piece. A file either
is complete or does not exist.

A local file is written under a temporary name in the same folder, and renamed after the last row. A remote file is
written to this machine first."""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from csv import writer as csv_writer
from typing import TYPE_CHECKING, Any, Protocol

from declarative_train.core.untrusted import in_lines
from declarative_train.files.open_files import format_path, local_path
from declarative_train.inference.answers import flatten_lists
from declarative_train.inference.trained import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

KINDS = ("csv", "parquet", "jsonl")
STDOUT = "-"


class _Writer(Protocol):
    def write(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


def kind_of(path: str) -> str:
    """Return the format of the output. For a file its ending decides; for standard output it is `csv`. Raises
    UsageError for an unknown ending."""
    if path == STDOUT:
        return "csv"
    kind = os.path.splitext(path)[1].lower().removeprefix(".")
    if kind not in KINDS:
        wanted = ", ".join(f".{each}" for each in KINDS)
        raise UsageError(f"-o {path}: the name does not say which format to write; help: let it end in one of {wanted}")
    return kind


class _Terminal:
    """Standard output that is a terminal. Control characters in the text are replaced, because the terminal would
    interpret them."""

    def write(self, text: str) -> int:
        return sys.stdout.write(in_lines(text))

    def flush(self) -> None:
        sys.stdout.flush()


def write(path: str, tables: Iterable[pa.Table]) -> int:
    """Write tables to the file `path` or to standard output, and return the number of rows. The file appears only when
    all rows are written. Standard output gets one table at a time. Raises UsageError and OSError."""
    kind = kind_of(path)
    if path == STDOUT:
        return _write_all(_TextWriter(_Terminal() if sys.stdout.isatty() else sys.stdout, "csv"), tables)
    with _replace_when_complete(path) as temporary:
        return _write_all(_writer(kind, temporary), tables)


def _write_all(writer: _Writer, tables: Iterable[pa.Table]) -> int:
    count = 0
    try:
        for table in tables:
            writer.write(table)
            count += table.num_rows
    finally:
        writer.close()
    return count


@contextmanager
def _replace_when_complete(path: str) -> Iterator[str]:
    """Yield a temporary path. At the end of the `with` block, move the file at this path to `path`; after an exception,
    delete it."""
    local = local_path(path)
    folder = (os.path.dirname(local) or ".") if local is not None else tempfile.gettempdir()
    if not os.path.isdir(folder):
        raise UsageError(f"-o {format_path(path)}: there is no folder {folder}")
    if local is not None and os.path.isdir(local):
        raise UsageError(f"-o {format_path(path)} is a folder; help: name a file in it")
    handle, temporary = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    os.close(handle)
    try:
        yield temporary
        if local is None:
            _put(temporary, path)
        else:
            set_default_mode(temporary)
            os.replace(temporary, local)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def set_default_mode(path: str) -> None:
    """Give a temporary file, which only its owner can read, the permissions that a new file has by default."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def _put(temporary: str, path: str) -> None:
    from fsspec.core import url_to_fs

    try:
        fs, inner = url_to_fs(path)
    except (ImportError, ValueError) as error:
        raise UsageError(f"-o {format_path(path)}: {error}") from None
    fs.put_file(temporary, inner)


def _writer(kind: str, path: str) -> _Writer:
    if kind == "parquet":
        return _ParquetWriter(path)
    return _TextWriter(open(path, "w", encoding="utf-8", newline=""), kind, owned=True)


class _ParquetWriter:
    def __init__(self, path: str) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, table: pa.Table) -> None:
        from pyarrow import parquet

        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _TextWriter:
    """Writer of text: csv with one header for all tables, or JSON lines."""

    def __init__(self, stream: Any, kind: str, *, owned: bool = False) -> None:
        self._stream, self._kind, self._owned = stream, kind, owned
        self._is_first = True

    def write(self, table: pa.Table) -> None:
        text = _as_csv(table, header=self._is_first) if self._kind == "csv" else _as_json(table)
        self._is_first = False
        self._stream.write(text)

    def close(self) -> None:
        if self._owned:
            self._stream.close()
        else:
            self._stream.flush()


def _as_csv(table: pa.Table, *, header: bool) -> str:
    """Return a table as csv text. `header`: begin with the names of the columns. If a string of the table needs quotes,
    all strings have them."""
    import pyarrow as pa
    from pyarrow import csv

    flat = _dates_as_text(flatten_lists(table))
    sink = pa.BufferOutputStream()
    style = "needed" if any(map(_needs_quotes, flat.columns)) else "none"
    csv.write_csv(flat, sink, csv.WriteOptions(include_header=False, quoting_style=style))
    text: str = sink.getvalue().to_pybytes().decode()
    if not header:
        return text
    line = io.StringIO()
    csv_writer(line, lineterminator="\n").writerow(flat.column_names)
    return line.getvalue() + text


def _needs_quotes(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return False
    return bool(pc.any(pc.match_substring_regex(column, '[",\r\n]|^$')).as_py())


def _dates_as_text(table: pa.Table) -> pa.Table:
    """Return a table with text such as `2025-01-01T11:00:00` in place of dates with times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for number, name in enumerate(table.column_names):
        if pa.types.is_timestamp(table.schema.types[number]):
            texts = pc.replace_substring(table.column(number).cast(pa.string()), " ", "T")
            table = table.set_column(number, name, pc.replace_substring_regex(texts, r"\.0+(Z?)$", r"\1"))
    return table


def _as_json(table: pa.Table) -> str:
    """Return a table as JSON lines. nan and infinite numbers become null, because JSON cannot represent them."""
    return "".join(
        f"{json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False)}\n"
        for row in _dates_as_text(table).to_pylist()
    )


def _plain(value: object) -> object:
    if isinstance(value, float) and value - value != 0:
        return None
    return [_plain(each) for each in value] if isinstance(value, list) else value
