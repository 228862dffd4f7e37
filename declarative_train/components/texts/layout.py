"""Tokens of texts -> rows of one length, each with what a field may give of it.

N rows, L positions, and for each position three numbers: its token, its segment (from 1 on; 0: padding) and whether it
is to be learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

OUTPUTS = ("ids", "mask", "segments", "positions", "trained")
LAYERS = 3
TOKEN, SEGMENT, TRAINED = range(LAYERS)


def empty(num_rows: int, length: int, pad: int) -> np.ndarray:
    """(N, 3, L) int32, all padding."""
    import numpy as np

    found = np.zeros((num_rows, LAYERS, length), np.int32)
    found[:, TOKEN] = pad
    return found


def place(
    row: np.ndarray,
    start: int,
    tokens: np.ndarray | Sequence[int],
    segment: int,
    trained: np.ndarray | Sequence[bool] | None = None,
) -> None:
    """Write a piece of a text into (3, L), from `start` on. Its first token follows from nothing, and is not learnt."""
    end = start + len(tokens)
    row[TOKEN, start:end] = tokens
    row[SEGMENT, start:end] = segment
    row[TRAINED, start:end] = 1 if trained is None else trained
    row[TRAINED, start : start + 1] = 0


def output(name: str, rows: np.ndarray) -> np.ndarray:
    """(N, L) of (N, 3, L): int64, or bool for `mask` and `trained`."""
    import numpy as np

    if name == "ids":
        return rows[:, TOKEN].astype(np.int64)
    segments = rows[:, SEGMENT]
    if name == "mask":
        return np.asarray(segments > 0)
    if name == "segments":
        return segments.astype(np.int64)
    if name == "trained":
        return np.asarray(rows[:, TRAINED] > 0)
    return positions(segments)


def positions(segments: np.ndarray) -> np.ndarray:
    """(N, L) int64, from 0 on in each segment, in padding too."""
    import numpy as np

    places = np.broadcast_to(np.arange(segments.shape[1]), segments.shape)
    begins = np.ones(segments.shape, bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
