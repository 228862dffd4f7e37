"""Table of the tokens of text files, one token per row. The files are encoded once, and the tokens are mapped into
memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from declarative_train.components.data import Column, Table
from declarative_train.files.open_files import format_path, local_path, read_bytes, size_bytes
from declarative_train.files.paths import SourceError
from declarative_train.packs.text.cache import Encoded, EncodingJob, make_tokens
from declarative_train.packs.text.documents import decode
from declarative_train.packs.text.tokenizer import Tokenizer, TokenizerError, tokenizer

if TYPE_CHECKING:
    import numpy as np

_PIECE = 16 << 20  # bytes of a file that are encoded at once


class TokenTable(Table):
    """Table of the tokens of files, file after file, with the token `eos` after each file if the recipe sets it."""

    def __init__(self, files: Sequence[str], name: str, eos: bool | str) -> None:
        try:
            found = tokenizer(name)
            last = found.role("eos", eos)
        except TokenizerError as error:
            raise SourceError("unreadable", str(error), help=error.help) from error
        self.files, self.read_with = tuple(files), found.files
        sizes = {path: size_bytes(path) for path in files}
        self._pieces = [piece for path in files for piece in _divide_file(path, sizes[path])]
        work = EncodingJob(
            len(self._pieces),
            lambda start, stop: self._pieces[start:stop],
            lambda piece, _: _encode(piece, found, last),
            found.num_tokens,
            about=["stream", [[path, sizes[path], _read_mtime_ns(path)] for path in files], found.sha256, last],
            size_bytes=sum(sizes.values()),
        )
        self.tokens = make_tokens(work)
        self.num_rows = len(self.tokens.tokens)
        self.columns = {"tokens": Column("tokens", str(self.tokens.tokens.dtype), (), found.num_tokens)}

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return dict.fromkeys(columns, self.tokens.tokens[rows])

    def read_runs(self, columns: Sequence[str], starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
        return {name: stack_runs(self.tokens.tokens, starts, length) for name in columns}

    def place(self, row: int) -> str:
        import numpy as np

        piece = int(np.searchsorted(self.tokens.starts, row, side="right")) - 1
        path, begin, _, _ = self._pieces[piece]
        where = f" from byte {begin + 1} on" if begin else ""
        return f"token {row - int(self.tokens.starts[piece]) + 1} of {format_path(path)}{where}"


def stack_runs(values: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    """Return an (N, length) array: `length` consecutive elements of `values` from each of the N indices `starts`."""
    import numpy as np

    found = np.empty((len(starts), length), values.dtype)
    for row, start in enumerate(starts.tolist()):
        found[row] = values[start : start + length]
    return found


Piece = tuple[str, int, int, bool]
"""File, first byte, end byte (exclusive), and whether this is the last piece of the file."""


def _divide_file(path: str, size: int) -> list[Piece]:
    """Divide a large file into pieces of whole lines, which are encoded separately. `size`: bytes of the file."""
    ends = [0]
    while ends[-1] < size:
        target = ends[-1] + _PIECE
        if target >= size:
            ends.append(size)
            break
        place = read_bytes(path, target, min(target + _PIECE, size)).find(b"\n")
        ends.append(size if place < 0 else target + place + 1)
    ends = ends if size else [0, 0]
    return [(path, begin, end, end == size) for begin, end in pairwise(ends)]


def _encode(piece: Piece, found: Tokenizer, last: int | None) -> Encoded:
    path, begin, end, is_last = piece
    text = decode(read_bytes(path, begin, end), path)
    try:
        tokens = found.encode(text, adds_special=False)
    except TokenizerError as error:
        raise SourceError("unreadable", f"{format_path(path)}: {error}", help=error.help) from error
    return Encoded([*tokens, last] if last is not None and is_last else tokens)


def _read_mtime_ns(path: str) -> int:
    local = local_path(path)
    return 0 if local is None else os.stat(local).st_mtime_ns
