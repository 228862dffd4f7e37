"""Source that reads text files: a table of tokens, one per row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from declarative_train.components.data import Column, FilesDataset, Table
from declarative_train.files.open_files import (
    OpenFiles,
    by_piece,
    format_path,
    local_path,
    map_bytes,
    read_bytes,
    size_bytes,
)
from declarative_train.packs.text.tokenizer import PATH_KEYS, is_path

if TYPE_CHECKING:
    import numpy as np

_BLOCK_BYTES = 4 << 20  # bytes of one read for block shuffling
_BLOCK = 1 << 16  # bytes of one request for single rows of a remote file


class TextDataset(FilesDataset):
    """Tokens of text files: one row per token, column `tokens`. A `window` makes samples of them. Several files are one
    text, file after file.

    With `documents`, it is a table of texts: one row per file or line, columns `text` and `path`."""

    type: Literal["text"] = "text"
    tokenizer: Annotated[str, Field(min_length=1)] = "bytes"
    """`bytes`: every byte of the UTF-8 text is a token, 0 to 255. Else a file `tokenizer.json` of Hugging Face's
    `tokenizers`, or the folder of a model that has one. Texts are encoded once; the tokens are in the user's cache."""
    eos: bool | Annotated[str, Field(min_length=1)] = False
    """Token after each file: true for the tokenizer's own, or the token itself."""
    documents: Literal["file", "line"] | None = None
    """Rows are texts: whole files, or lines that are not blank. A field of `type: tokens` encodes them."""

    path_keys: ClassVar[tuple[str, ...]] = PATH_KEYS

    @classmethod
    def is_path(cls, value: str) -> bool:
        return is_path(value)

    @model_validator(mode="after")
    def _agrees(self) -> TextDataset:
        if self.documents is not None and (self.tokenizer != "bytes" or self.eos is not False):
            raise ValueError(
                "with `documents` rows are texts: `tokenizer` and `eos` are keys of a field `type: tokens`"
            )
        if self.tokenizer == "bytes" and self.eos is not False:
            raise ValueError("`eos` is a token, and `tokenizer: bytes` has bytes only")
        return self

    @property
    def needs_window(self) -> bool:
        return self.documents is None

    def open(self) -> Table:
        if self.documents is not None:
            from declarative_train.packs.text.documents import FileTexts, LineTexts

            return FileTexts(self.files()) if self.documents == "file" else LineTexts(self.files())
        if self.tokenizer != "bytes":
            from declarative_train.packs.text.token_stream import TokenTable

            return TokenTable(self.files(), self.tokenizer, self.eos)
        return ByteTable(self.files())


class ByteTable(Table):
    """Table of the bytes of files, one byte per row. Local files are mapped into memory. Of remote files, only the
    blocks that are needed are read."""

    blocks_may_be_cut = True

    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        sized = [(path, size) for path in files if (size := size_bytes(path))]  # an empty file cannot be mapped
        self.files = tuple(files)
        self.columns = {"tokens": Column("tokens", "uint8", (), 256)}
        self._paths = [path for path, _ in sized]
        self._starts = [0, *accumulate(size for _, size in sized)]
        self._mapped = OpenFiles(map_bytes)
        self.num_rows = self._starts[-1]
        starts = [np.arange(start, stop, _BLOCK_BYTES) for start, stop in pairwise(self._starts)]
        self.blocks = np.concatenate([*starts, [self.num_rows]]).astype(np.int64)
        for path in self._paths:
            self._bytes(path)  # report a file without permission when the source is opened

    def size_bytes(self, columns: Sequence[str]) -> int | None:
        return self.num_rows * len(columns)

    def _bytes(self, path: str) -> np.ndarray | None:
        """Return the bytes of a file, mapped into memory; None if it is remote."""
        return None if local_path(path) is None else self._mapped.get(path)

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(self.num_rows)
            return {name: self._range(start, stop) for name in columns}
        return {name: self._pick(rows) for name in columns}

    def read_runs(self, columns: Sequence[str], starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
        import numpy as np

        found = np.empty((len(starts), length), np.uint8)
        for row, start in enumerate(starts.tolist()):
            found[row] = self._range(start, start + length)
        return dict.fromkeys(columns, found)

    def _range(self, start: int, stop: int) -> np.ndarray:
        import numpy as np

        file = bisect_right(self._starts, start) - 1
        if start < stop <= self._starts[file + 1]:
            return np.asarray(self._slice(file, start, stop))
        found = np.empty(max(stop - start, 0), np.uint8)  # filled file by file: a view would keep each of them open
        place = 0
        while start < stop:
            end = min(self._starts[file + 1], stop)
            found[place : place + end - start] = self._slice(file, start, end)
            place += end - start
            start, file = end, file + 1
        return found

    def _slice(self, file: int, start: int, stop: int) -> np.ndarray:
        """Return the rows from `start` to `stop` of file number `file`."""
        import numpy as np

        begin = self._starts[file]
        mapped = self._bytes(self._paths[file])
        if mapped is not None:
            return mapped[start - begin : stop - begin]
        return np.frombuffer(read_bytes(self._paths[file], start - begin, stop - begin), np.uint8)

    def _pick(self, rows: np.ndarray) -> np.ndarray:
        import numpy as np

        found = np.empty(len(rows), np.uint8)
        for file, places, inside in by_piece(self._starts, rows):
            mapped = self._bytes(self._paths[file])
            found[places] = mapped[inside] if mapped is not None else self._fetch(file, inside)
        return found

    def _fetch(self, file: int, rows: np.ndarray) -> np.ndarray:
        """Return the bytes at the positions `rows` of file number `file`, which is remote. Whole blocks of the file are
        read, consecutive blocks by one request."""
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
        return f"byte {row - self._starts[file] + 1} of {format_path(self._paths[file])}"
