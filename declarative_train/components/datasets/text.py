"""Text files -> a table of tokens, one per row, read by position."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Column, Dataset, SourceError, Table
from declarative_train.components.datasets.files import (
    Paths,
    as_tuple,
    expand,
    local_path,
    read_bytes,
    shown,
    size_bytes,
)

if TYPE_CHECKING:
    import numpy as np

_BLOCK = 1 << 16  # bytes fetched at once for single rows of a remote file


class TextDataset(Dataset):
    """The tokens of text files: one row per token, column `tokens`. A `window` makes samples of them.

    Several files are one text, file after file.
    """

    type: Literal["text"] = "text"
    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""
    tokenizer: Literal["bytes"] = "bytes"
    """bytes: every byte of the UTF-8 text is a token, 0 to 255."""

    @property
    def paths(self) -> tuple[str, ...]:
        return as_tuple(self.path)

    def open(self) -> Table:
        return ByteTable(expand(self.paths))


class ByteTable(Table):
    """The bytes of files, mapped where they lie on this machine, else fetched by range."""

    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        sized = [(path, size) for path in files if (size := size_bytes(path))]  # an empty file cannot be mapped
        self.files = tuple(files)
        self.columns = {"tokens": Column("tokens", "uint8", (), 256)}
        self._paths = [path for path, _ in sized]
        self._starts = [0]
        self._mapped: list[np.ndarray | None] = []
        for path, size in sized:
            self._starts.append(self._starts[-1] + size)
            local = local_path(path)
            try:
                self._mapped.append(None if local is None else np.memmap(local, np.uint8, "c"))
            except OSError as error:
                raise SourceError("unreadable", f"cannot read {shown(path)}: {error.strerror}") from error
        self.num_rows = self._starts[-1]

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.num_rows)
            return {name: self._range(start, stop) for name in columns}
        return {name: self._pick(rows) for name in columns}

    def _range(self, start: int, stop: int) -> np.ndarray:
        import numpy as np

        parts = []
        file = bisect_right(self._starts, start) - 1
        while start < stop:
            begin, end = self._starts[file], min(self._starts[file + 1], stop)
            mapped = self._mapped[file]
            if mapped is not None:
                parts.append(mapped[start - begin : end - begin])
            else:
                parts.append(np.frombuffer(read_bytes(self._paths[file], start - begin, end - begin), np.uint8))
            start, file = end, file + 1
        return np.concatenate([np.empty(0, np.uint8), *parts]) if len(parts) != 1 else np.asarray(parts[0])

    def _pick(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        found = np.empty(len(rows), np.uint8)
        file_of = np.searchsorted(self._starts, rows, side="right") - 1
        for file in np.unique(file_of):
            where = np.flatnonzero(file_of == file)
            inside = rows[where] - self._starts[file]
            mapped = self._mapped[file]
            found[where] = mapped[inside] if mapped is not None else self._fetch(int(file), inside)
        return found

    def _fetch(self, file: int, rows: np.ndarray) -> np.ndarray:
        """Rows of a remote file, by blocks, neighbouring blocks in one request."""
        import numpy as np

        blocks = np.unique(rows // _BLOCK)
        found = np.empty(len(rows), np.uint8)
        for run in np.split(blocks, np.flatnonzero(np.diff(blocks) > 1) + 1):
            begin, end = int(run[0]) * _BLOCK, (int(run[-1]) + 1) * _BLOCK
            size = self._starts[file + 1] - self._starts[file]
            values = np.frombuffer(read_bytes(self._paths[file], begin, min(end, size)), np.uint8)
            inside = (rows >= begin) & (rows < end)
            found[inside] = values[rows[inside] - begin]
        return found

    def place(self, row: int) -> str:
        file = bisect_right(self._starts, row) - 1
        return f"byte {row - self._starts[file] + 1} of {shown(self._paths[file])}"
