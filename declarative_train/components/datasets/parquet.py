"""Parquet files as a source: a table that reads a row group when one of its rows is needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from declarative_train.components.data import FilesDataset, Table
from declarative_train.components.datasets.block_table import BlockFormat, BlockTable, reason
from declarative_train.files.open_files import check_beginning, format_path, local_path, open_file
from declarative_train.files.paths import SourceError

_KEPT_FOOTERS = 256  # each has 1 MB if its file has many row groups and columns


class ParquetDataset(FilesDataset):
    """Rows of Parquet files. Only the columns that fields use are read. Data that is larger than memory is read one row
    group at a time.

    Several files are one table, file after file."""

    type: Literal["parquet"] = "parquet"

    def open(self) -> Table:
        return ParquetTable(self.files())


class ParquetTable(BlockTable):
    def __init__(self, files: Sequence[str]) -> None:
        super().__init__(files, ParquetFormat())


class ParquetFormat(BlockFormat):
    kind: ClassVar[str] = "parquet"
    block: ClassVar[str] = "row group"

    def __init__(self) -> None:
        self._footers: dict[str, Any] = {}  # footers of local files, shared by the threads that open them

    def open(self, path: str) -> Any:
        import pyarrow as pa
        from pyarrow import parquet

        local = local_path(path)
        try:
            if local is not None:
                # not mapped: mapped pages would count as memory in use, and a truncated file would kill the process
                found = parquet.ParquetFile(local, pre_buffer=False, metadata=self._footers.get(path))
                if len(self._footers) >= _KEPT_FOOTERS:  # a changed file is reported by OpenFiles
                    self._footers.clear()
                self._footers[path] = found.metadata
                return found
            return parquet.ParquetFile(open_file(path), pre_buffer=True)  # adjacent columns in one read
        except (pa.ArrowInvalid, OSError) as error:
            check_beginning(path, "a Parquet file", b"PAR1")
            raise SourceError("unreadable", f"cannot read {format_path(path)}: {reason(error)}") from error

    def schema(self, opened: Any) -> Any:
        return opened.schema_arrow

    def footer(self, opened: Any) -> dict[str, Any]:
        metadata = opened.metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        sizes: dict[str, int] = {}
        for group in groups:
            for number in range(group.num_columns):
                column = group.column(number)
                name = column.path_in_schema.partition(".")[0]
                sizes[name] = sizes.get(name, 0) + column.total_uncompressed_size
        return {"rows": [group.num_rows for group in groups], "names": opened.schema_arrow.names, "sizes": sizes}

    def read(self, opened: Any, number: int, names: list[str], most: int | None) -> Any:
        import pyarrow as pa

        if most is None:
            return opened.read_row_group(number, columns=names, use_threads=False)
        first = next(opened.iter_batches(most, row_groups=[number], columns=names, use_threads=False))
        return pa.Table.from_batches([first])
