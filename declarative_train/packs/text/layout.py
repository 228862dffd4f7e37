"""Arrangement of texts in rows of one length, and the outputs of a tokens field, computed on whole arrays.

A piece is a text, or a part of a text that was cut. A row contains its pieces one after the other from position 0, then
padding. P pieces, N rows, L positions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

OUTPUTS = ("ids", "mask", "segments", "positions", "trained")
DTYPES = {"ids": "int64", "mask": "bool", "segments": "int64", "positions": "int64", "trained": "bool"}


class Pieces(NamedTuple):
    """Pieces (texts, or parts of texts that were cut), arranged in rows. Piece p is the `sizes[p]` tokens of the flat
    array `tokens` from index `begins[p]` on. Row n has `counts[n]` pieces. `trained`: 1 for each element of `tokens`
    that counts in the loss; None: all count."""

    tokens: np.ndarray
    begins: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray
    trained: np.ndarray | None = None


def pieces_of_texts(texts: Sequence[Sequence[int]], trained: Sequence[Sequence[bool] | None] | None = None) -> Pieces:
    """Return tokenized texts as Pieces in which each row is one whole text. `trained`: for each text, a flag per token
    that says whether the token counts in the loss, or None if all do. Without `trained`, all tokens of all texts count.
    """
    import numpy as np

    sizes = np.asarray([len(each) for each in texts], np.int64)
    tokens = np.fromiter((token for each in texts for token in each), np.int64, int(sizes.sum()))
    flags = None
    if trained is not None and any(each is not None for each in trained):
        pairs = zip(trained, sizes.tolist(), strict=True)
        flags = np.concatenate(
            [np.ones(size, bool) if each is None else np.asarray(each, bool) for each, size in pairs]
        )
    return Pieces(tokens, np.cumsum(sizes) - sizes, sizes, np.ones(len(texts), np.int64), flags)


def rows(outputs: Collection[str], pieces: Pieces, length: int, pad: int) -> dict[str, np.ndarray]:
    """Return the arrays (N, L) of N packed rows, by name: pieces (texts or parts of texts), then padding up to the
    length L. `outputs`: names of the arrays to make.

    ids        tokens; `pad` in padding
    mask       false in padding
    segments   number of the piece in its row, from 1; 0 in padding
    positions  position in the piece, or in the padding, from 0
    trained    the token counts in the loss; false for the first of a piece, which nothing predicts"""
    import numpy as np

    begins, sizes, segments = _add_padding(pieces, length)
    size = len(pieces.counts) * length
    firsts = np.cumsum(sizes) - sizes
    found: dict[str, np.ndarray] = {}
    places = np.empty(0, np.int64)
    if not {"ids", "positions", "trained"}.isdisjoint(outputs):
        places = np.arange(size)
        places -= np.repeat(firsts, sizes)
    rest = np.where(segments == 0, sizes, 0)
    padding = np.repeat(firsts - np.cumsum(rest) + rest, rest) + np.arange(int(rest.sum()))  # indices of padding
    if "segments" in outputs:
        found["segments"] = np.repeat(segments, sizes)
    if "mask" in outputs:
        found["mask"] = np.ones(size, bool)
        found["mask"][padding] = False
    if "ids" in outputs:
        found["ids"] = _gather(pieces.tokens, begins, sizes, places).astype(np.int64, copy=False)
        found["ids"][padding] = pad
    if "trained" in outputs:
        flags = pieces.trained
        made = np.ones(size, bool) if flags is None else _gather(flags, begins, sizes, places).astype(bool)
        made[firsts[sizes > 0]] = False
        made[padding] = False
        found["trained"] = made
    if "positions" in outputs:
        found["positions"] = places
    return {name: values.reshape(-1, length) for name, values in found.items()}


def _add_padding(pieces: Pieces, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arrays (begins, sizes, segments) with one element for each piece (a text or a part of a text). Each row
    has an additional piece: its padding up to `length` tokens.

    begins    index of the piece's first token in `pieces.tokens`; 0 for padding
    sizes     number of tokens
    segments  number of the piece in its row, from 1; 0 for padding"""
    import numpy as np

    counts = pieces.counts
    ends = np.cumsum(counts)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(pieces.sizes)])
    behind = ends + np.arange(len(counts))  # the index of each row's padding piece
    is_piece = np.ones(len(pieces.sizes) + len(counts), bool)
    is_piece[behind] = False
    begins, sizes, segments = (np.zeros(len(is_piece), np.int64) for _ in range(3))
    begins[is_piece], sizes[is_piece] = pieces.begins, pieces.sizes
    segments[is_piece] = np.arange(1, len(pieces.sizes) + 1) - np.repeat(ends - counts, counts)
    sizes[behind] = length - (before[ends] - before[ends - counts])
    return begins, sizes, segments


def _gather(flat: np.ndarray, begins: np.ndarray, sizes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the elements of all pieces (texts or parts of texts) in one array, piece after piece. Elements in padding
    have arbitrary values. `begins`, `sizes`: for each piece, its first index in `flat` and its number of elements.
    `places`: for each element of the result, its index in its piece."""
    import numpy as np

    if not len(flat):
        return np.zeros(len(places), flat.dtype)
    index = np.repeat(begins, sizes)
    index += places
    return np.asarray(np.asarray(flat).take(index, mode="clip"))
