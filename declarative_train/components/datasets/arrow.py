"""Arrow files, and folders saved by Hugging Face `datasets`, as a source: a table of memory-mapped files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from declarative_train.components.data import FilesDataset, Paths, Table
from declarative_train.components.datasets.block_table import BlockFormat, BlockTable, reason
from declarative_train.core.untrusted import parse_json
from declarative_train.files.open_files import check_beginning, expand, format_path, local_path
from declarative_train.files.paths import SourceError

_STATE, _SETS = "state.json", "dataset_dict.json"


class ArrowDataset(FilesDataset):
    """Rows of Arrow files (IPC format: `.arrow`, `.feather`, files and streams). They are mapped into memory if they
    are not compressed.

    A folder written by `save_to_disk` of the package `datasets` is read as its files. If it has several sets, name the
    folder of one of them. Several files are one table, file after file."""

    type: Literal["arrow"] = "arrow"
    path: Paths
    """A file, a folder that `save_to_disk` wrote, a glob, or a list of them, on this machine, relative to the recipe's
    file."""

    def files(self) -> list[str]:
        return [file for path in self.paths for file in _files(path)]

    def open(self) -> Table:
        return BlockTable(self.files(), ArrowFormat())


def _files(path: str) -> Sequence[str]:
    local = local_path(path)
    if local is None:
        raise SourceError(
            "unreadable",
            f"{format_path(path)} is not on this machine",
            help="copy it: Arrow files are mapped into memory",
        )
    if not os.path.isdir(local):
        return expand([path])
    state = os.path.join(local, _STATE)
    if not os.path.isfile(state):
        message = f"{format_path(path)} is a folder without `{_STATE}`, and not what `save_to_disk` writes"
        raise SourceError(
            "unreadable", message, help=_sets(local) or f"list its files: {format_path(path).rstrip('/')}/*.arrow"
        )
    try:
        with open(state, encoding="utf-8") as file:
            found = parse_json(file.read())
        names = [str(each["filename"]) for each in found["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SourceError("unreadable", f"cannot read {format_path(state)}: {reason(error)}") from error
    if found.get("_indices_files"):
        message = f"{format_path(path)} is a selection of rows by number, which is not read"
        raise SourceError("unreadable", message, help="save it after `flatten_indices()`")
    return expand([os.path.join(local, name) for name in names])


def _sets(folder: str) -> str | None:
    if not os.path.isfile(os.path.join(folder, _SETS)):
        return None
    names = sorted(name for name in os.listdir(folder) if os.path.isfile(os.path.join(folder, name, _STATE)))
    return f"it holds several sets: name the folder of one, {', '.join(names)}"


class ArrowFormat(BlockFormat):
    kind: ClassVar[str] = "arrow"
    block: ClassVar[str] = "record batch"

    def open(self, path: str) -> Any:
        import pyarrow as pa

        try:
            return _Batches(_open(local_path(path)))
        except (pa.ArrowInvalid, OSError) as error:
            check_beginning(path, "a file of Arrow's record batches", b"ARROW1")
            raise SourceError("unreadable", f"cannot read {format_path(path)}: {reason(error)}") from error

    def schema(self, opened: Any) -> Any:
        return opened.schema

    def footer(self, opened: Any) -> dict[str, Any]:
        rows: list[int] = []
        sizes = dict.fromkeys(opened.schema.names, 0)
        for number in range(opened.count):
            batch = opened.batch(number)
            rows.append(batch.num_rows)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                sizes[name] += column.nbytes
        return {"rows": rows, "names": opened.schema.names, "sizes": sizes}

    def read(self, opened: Any, number: int, names: list[str], most: int | None) -> Any:
        import pyarrow as pa

        table = pa.Table.from_batches([opened.batch(number)]).select(names)
        return table if most is None else table.slice(0, most)


def _open(path: str | None) -> Any:
    """Open an Arrow file. It is mapped into memory if possible, but not if address space is limited (`ulimit -v`),
    because each thread would map the whole file."""
    import pyarrow as pa

    if sys.platform != "win32":
        import resource

        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            return pa.OSFile(path)
    try:
        return pa.memory_map(path)
    except OSError:
        return pa.OSFile(path)


class _Batches:
    """Record batches of an Arrow file or stream. A file lists the positions of its batches. A stream is scanned once to
    find them."""

    def __init__(self, source: Any) -> None:
        from pyarrow import ipc

        self._source = source
        self._reader: Any = None
        if source.read(6) == b"ARROW1":
            self._reader = ipc.open_file(source)
            self.schema, self.count = self._reader.schema, self._reader.num_record_batches
            return
        source.seek(0)
        stream = ipc.open_stream(source)
        self.schema = stream.schema
        self._batches = list(stream)
        self.count = len(self._batches)

    def batch(self, number: int) -> Any:
        return self._batches[number] if self._reader is None else self._reader.get_batch(number)
