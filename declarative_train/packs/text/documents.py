"""Tables of texts from text files: a row for each file, or for each line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from declarative_train.components.data import Column, Table
from declarative_train.files.open_files import format_path, objects, read_bytes
from declarative_train.files.paths import SourceError

if TYPE_CHECKING:
    import numpy as np

_TEXT, _PATH = "text", "path"


def decode(content: bytes, path: str) -> str:
    """Decode the content of a file as UTF-8. `path`: its path, for errors. Raises SourceError if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"{format_path(path)} is not UTF-8: line {line} has the byte {content[error.start]:#04x}"
        raise SourceError("unreadable", message, help="convert the file, or remove it from `path`") from None


class FileTexts(Table):
    """Table with one text per file. A file is read when its row is read."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = tuple(files)
        self.num_rows = len(files)
        self.columns = {name: Column(name, "object") for name in (_TEXT, _PATH)}

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        chosen = self.files[rows] if isinstance(rows, slice) else [self.files[row] for row in rows.tolist()]
        found = {}
        for name in columns:
            values = [decode(read_bytes(path), path) for path in chosen] if name == _TEXT else list(chosen)
            found[name] = objects(values)
        return found

    def place(self, row: int) -> str:
        return format_path(self.files[row])


class LineTexts(Table):
    """Table with one text per line that is not blank. Each file is read once to find its lines, and again when its rows
    are read. The file that was read last stays in memory."""

    def __init__(self, files: Sequence[str]) -> None:
        import numpy as np

        self.files = tuple(files)
        self.columns = {name: Column(name, "object") for name in (_TEXT, _PATH)}
        self._lines = [_lines(read_bytes(path)) for path in files]  # for each file: (L, 2), begin and end of each line
        self._starts = [0, *accumulate(len(lines) for lines in self._lines)]
        self._empty = np.empty((0, 2), np.int64)
        self._kept: tuple[str, bytes] | None = None
        self.num_rows = self._starts[-1]

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        numbers = range(*rows.indices(self.num_rows)) if isinstance(rows, slice) else rows.tolist()
        found: dict[str, list[object]] = {name: [] for name in columns}
        for row in numbers:
            file, line = self._at(row)
            for name, values in found.items():
                values.append(self._line(file, line) if name == _TEXT else self.files[file])
        return {name: objects(values) for name, values in found.items()}

    def _at(self, row: int) -> tuple[int, int]:
        file = bisect_right(self._starts, row) - 1
        return file, row - self._starts[file]

    def _line(self, file: int, line: int) -> str:
        path, kept = self.files[file], self._kept
        if kept is None or kept[0] != path:
            self._kept = kept = (path, read_bytes(path))
        begin, end = self._lines[file][line].tolist()
        return decode(kept[1][begin:end], path)

    def place(self, row: int) -> str:
        file, line = self._at(row)
        content = read_bytes(self.files[file], 0, int(self._lines[file][line, 0]))
        return f"line {content.count(10) + 1} of {format_path(self.files[file])}"


def _lines(content: bytes) -> np.ndarray:
    """Return an (L, 2) array with begin and end of each of the L lines that are not blank, without the line break."""
    import numpy as np

    ends = np.flatnonzero(np.frombuffer(content, np.uint8) == ord("\n"))
    begins = np.concatenate([[0], ends + 1])
    ends = np.append(ends, len(content))
    found = [
        (begin, end - (content[end - 1 : end] == b"\r"))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        if content[begin:end].strip()
    ]
    return np.asarray(found, np.int64).reshape(-1, 2)
