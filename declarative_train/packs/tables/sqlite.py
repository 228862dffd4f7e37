"""Source that reads SQLite files. A small table is read into memory; a large one is first converted to a file in a
cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from declarative_train.components.data import FilesDataset, Paths, Table
from declarative_train.components.datasets.arrow_cache import BLOCK_BYTES, convert, is_large
from declarative_train.components.datasets.arrow_columns import check_same_columns
from declarative_train.files.cache import stamp
from declarative_train.files.open_files import check_beginning, format_path, local_path, size_bytes
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import sqlite3

_MAGIC = b"SQLite format 3\0"
_WAIT_S = 30.0  # longest wait for a process that writes
_TOGETHER = 400  # columns examined by one query: SQLite allows 2,000 results
_STEPS = 1_000_000  # steps of SQLite's virtual machine between heartbeats
_VIEW_STEPS, _VIEW_STEPS_PER_BYTE = 100_000_000, 100  # most steps for a view; a scan needs 10 for each byte
_MOST_ROWS = 1 << 16  # rows of a record batch
_KINDS = ("integer", "real", "text", "blob")


class SqliteDataset(FilesDataset):
    """Rows of SQLite files: of a table, in the order of `rowid`, or of a view, in its own order.

    The type of a column is that of its values, not the declared one: integers, numbers, text, or blobs, which are files
    (pictures). A column with text and numbers is read as text; dates are read as SQLite stores them, text or numbers.
    Several files are one table, file after file. More than 1 GiB is converted once, to a file in the user's cache, and
    read from there in blocks."""

    type: Literal["sqlite"] = "sqlite"
    path: Paths
    """A file, a glob, or a list of them, on this machine, relative to the recipe's file."""
    table: Annotated[str, Field(min_length=1)]
    """The name of a table or view. A view (`CREATE VIEW`) can choose, join and order rows."""

    def open(self) -> Table:
        import pyarrow as pa

        from declarative_train.components.datasets.arrow_columns import MemoryTable

        files = self.files()
        for path in files:
            if local_path(path) is None:
                raise SourceError("unreadable", f"{format_path(path)} is not on this machine", help="copy it")
            check_beginning(path, "an SQLite database", _MAGIC)
        if is_large(files):
            options = [self.table, [stamp(each) for path in files if os.path.exists(each := f"{path}-wal")]]
            table = convert(files, self.type, options, self._schema, self._batches)
            if table is not None:
                return table
        schema = self._schema(files, lambda: None)
        return MemoryTable([(path, pa.Table.from_batches(self._batches(path, schema, []), schema)) for path in files])

    @classmethod
    def open_files(cls, paths: Sequence[str], source: Mapping[str, object]) -> Table:
        """Open a table in SQLite files that the user gives, for example for predictions. `source`: source of the run.
        If it reads SQLite too, the table must have the same name; otherwise the first file must have only one table.
        Raises SourceError."""
        own = str(source["table"]) if source.get("type") == "sqlite" else None
        return cls(path=tuple(paths), table=only_table(paths[0], own)).open()

    @contextmanager
    def _open(self, path: str, heartbeat: Callable[[], None]) -> Iterator[tuple[sqlite3.Connection, str]]:
        """Open the file at `path` for the `with` block. Yield (connection, the text after FROM in a SELECT of the
        table). The text has ORDER BY if the table has a rowid. `heartbeat` is called regularly during a query. Raises
        SourceError, also for errors of SQLite in the `with` block."""
        import sqlite3
        from pathlib import Path

        import pyarrow as pa

        steps, most = 0, _VIEW_STEPS + _VIEW_STEPS_PER_BYTE * size_bytes(path)

        def count() -> bool:
            nonlocal steps
            heartbeat()
            steps += _STEPS
            return is_view and steps > most

        try:
            address = f"{Path(str(local_path(path))).absolute().as_uri()}?mode=ro"
            with closing(sqlite3.connect(address, uri=True, timeout=_WAIT_S)) as file:
                known = dict(file.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')"))
                name = next((name for name in known if name.lower() == self.table.lower()), None)
                if name is None:
                    hint = f"it has {', '.join(f'`{each}`' for each in sorted(known)[:8])}" if known else "it has none"
                    raise SourceError("unreadable", f"{format_path(path)} has no table `{self.table}`", help=hint)
                is_view = known[name] == "view"
                file.set_progress_handler(count, _STEPS)
                yield file, _quote(name) + (" ORDER BY rowid" if _has_rowid(file, name, known[name]) else "")
        except sqlite3.OperationalError as error:
            if steps <= most:
                raise _unreadable(path, self.table, error) from error
            message = f"the view `{self.table}` of {format_path(path)} has not ended after {steps:,} steps of SQLite"
            hint = f"limit it, or keep its rows: `CREATE TABLE chosen AS SELECT ... FROM {self.table}`"
            raise SourceError("unreadable", message, help=hint) from error
        except (sqlite3.Error, pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise _unreadable(path, self.table, error) from error

    def _schema(self, files: Sequence[str], heartbeat: Callable[[], None]) -> Any:
        """Return an Arrow schema whose types can represent all values in all files. Raises SourceError."""
        import pyarrow as pa

        found: dict[str, set[str]] = {}
        for path in files:
            with self._open(path, heartbeat) as (file, rows):
                names = [column[0] for column in file.execute(f"SELECT * FROM {rows} LIMIT 0").description]
                if found:
                    check_same_columns(files[0], list(found), path, names)
                for begin in range(0, len(names), _TOGETHER):
                    some = names[begin : begin + _TOGETHER]
                    asked = [f"max(typeof({_quote(name)}) = '{kind}')" for name in some for kind in _KINDS]
                    answers = iter(file.execute(f"SELECT {', '.join(asked)} FROM {rows}").fetchone())
                    for name in some:
                        found.setdefault(name, set()).update(kind for kind in _KINDS if next(answers))
                        if "blob" in found[name] and len(found[name]) > 1:
                            message = f"`{name}` in `{self.table}` of {format_path(path)} holds blobs and other values"
                            hint = f"name a view without them: `CREATE VIEW chosen AS SELECT ... FROM {self.table}`"
                            raise SourceError("unreadable", message, help=hint)
        return pa.schema([(name, _type_of(kinds)) for name, kinds in found.items()])

    def _batches(self, path: str, schema: Any, bad: list[tuple[int, str]]) -> Iterator[Any]:
        import pyarrow as pa

        names = ", ".join(map(_quote, schema.names))
        with self._open(path, lambda: None) as (file, source):
            rows: list[tuple[Any, ...]] = []
            size = 0
            for row in file.execute(f"SELECT {names} FROM {source}"):
                rows.append(row)
                size += sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)
                if size > BLOCK_BYTES or len(rows) == _MOST_ROWS:
                    yield pa.RecordBatch.from_arrays(_columns(rows, schema), schema=schema)
                    rows, size = [], 0
            if rows:
                yield pa.RecordBatch.from_arrays(_columns(rows, schema), schema=schema)


def _unreadable(path: str, table: str, error: Exception) -> SourceError:
    return SourceError("unreadable", f"cannot read `{table}` of {format_path(path)}: {str(error).splitlines()[0]}")


def only_table(path: str, wanted: str | None = None) -> str:
    """Return the name of the table or view to read. If `wanted` is given, it is this name as the file spells it;
    otherwise the file must have only one table. Raises SourceError."""
    import sqlite3
    from pathlib import Path

    if (local := local_path(path)) is None:
        raise SourceError("unreadable", f"{format_path(path)} is not on this machine", help="copy it")
    check_beginning(path, "an SQLite database", _MAGIC)
    try:
        with closing(sqlite3.connect(f"{Path(local).absolute().as_uri()}?mode=ro", uri=True, timeout=_WAIT_S)) as file:
            found = file.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            names: list[str] = sorted(name for (name,) in found if not name.startswith("sqlite_"))
    except sqlite3.Error as error:
        raise SourceError("unreadable", f"cannot read {format_path(path)}: {str(error).splitlines()[0]}") from error
    same = None if wanted is None else next((name for name in names if name.lower() == wanted.lower()), None)
    if same is not None:
        return same
    if wanted is None and len(names) == 1:
        return names[0]
    hint = f"it has {', '.join(f'`{name}`' for name in names[:8])}" if names else "it has none"
    what = f"no table `{wanted}`" if wanted is not None else "more than one table, or none"
    raise SourceError("unreadable", f"{format_path(path)} has {what}", help=hint)


def _type_of(kinds: Collection[str]) -> Any:
    import pyarrow as pa

    of_kind = {"blob": pa.binary(), "text": pa.string(), "real": pa.float64(), "integer": pa.int64()}
    return next((kind for name, kind in of_kind.items() if name in kinds), pa.null())


def _quote(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _has_rowid(file: sqlite3.Connection, name: str, kind: str) -> bool:
    """Return whether the table `name` has a rowid, by which its rows are ordered. Views and tables created WITHOUT
    ROWID have none. `kind`: table or view."""
    import sqlite3

    if kind != "table":
        return False
    try:
        file.execute(f"SELECT rowid FROM {_quote(name)} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def _columns(rows: Sequence[tuple[Any, ...]], schema: Any) -> list[Any]:
    import pyarrow as pa

    found = []
    for values, field in zip(zip(*rows, strict=True), schema, strict=True):
        as_text = field.type == pa.string()
        some = [None if value is None else str(value) for value in values] if as_text else values
        found.append(pa.array(some, field.type))
    return found
