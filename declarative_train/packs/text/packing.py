"""Packing: arrangement of texts in samples of `length` tokens. It depends only on the lengths of the texts. A sample
has several texts or parts of texts.

Shapes: P pieces (texts, or parts of a text that was cut), W samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np

PackMode = Literal["best_fit", "sequential"]


class Packing(NamedTuple):
    """Result of packing: which pieces of texts each sample has. Sample w has the pieces from `begins[w]` up to
    `begins[w + 1]`, one after the other from position 0. Piece p is `lengths[p]` tokens of text `texts[p]`, from token
    `offsets[p]` on."""

    length: int
    begins: np.ndarray
    texts: np.ndarray
    offsets: np.ndarray
    lengths: np.ndarray

    @property
    def num_samples(self) -> int:
        return len(self.begins) - 1

    @property
    def fill(self) -> float:
        """Fraction of all positions in samples that hold a token."""
        return float(self.lengths.sum() / max(self.num_samples * self.length, 1))


def pack(sizes: np.ndarray, length: int, way: PackMode, most: int | None = None) -> Packing:
    """Pack texts into samples of `length` tokens; every token is used once. `sizes`: tokens of each text. `most`:
    the largest number of pieces in a sample, for `best_fit` only. `way`:

    sequential  concatenates the texts and cuts at the end of each sample
    best_fit    cuts only texts longer than a sample. Each piece, the longest first, is put into the sample with the
                least room that is enough (Ding et al., Fewer truncations improve language modeling, 2024)"""
    import numpy as np

    sizes = np.asarray(sizes, np.int64)
    return _pack_in_order(sizes, length) if way == "sequential" else _pack_by_fit(sizes, length, most)


def pack_together(sizes: Sequence[np.ndarray], lengths: Sequence[int], most: int | None = None) -> list[Packing]:
    """Pack the texts of several fields so that a sample has the same texts, in the same order, in every field. Return
    the packing of each field.

    `sizes`    for each field, the number of tokens of each text
    `lengths`  for each field, the number of tokens of a sample, which no text may exceed
    `most`     largest number of texts in a sample; None: any
    """
    import numpy as np

    room = np.max([-(-each * lengths[0] // length) for each, length in zip(sizes, lengths, strict=True)], axis=0)
    found = _pack_by_fit(room, lengths[0], most)
    return [
        found._replace(length=length, offsets=np.zeros_like(found.offsets), lengths=each[found.texts])
        for each, length in zip(sizes, lengths, strict=True)
    ]


def join_packings(packings: Sequence[Packing], firsts: Sequence[int]) -> Packing:
    """Join the packings of several lists of texts to one packing of all texts. The samples stay the same, so none has
    texts of two lists. `firsts`: for each list, the index of its first text among all texts."""
    import numpy as np

    before = np.cumsum([0, *(len(each.texts) for each in packings)])
    begins = [each.begins[:-1] + start for each, start in zip(packings, before, strict=False)]
    texts = [each.texts + first for each, first in zip(packings, firsts, strict=True)]
    others = [np.concatenate([each[place] for each in packings]) for place in (3, 4)]
    return Packing(packings[0].length, np.append(np.concatenate(begins), before[-1]), np.concatenate(texts), *others)


def _pack_in_order(sizes: np.ndarray, length: int) -> Packing:
    import numpy as np

    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    both = np.concatenate([np.arange(0, total, length), (ends - sizes)[sizes > 0]])
    both.sort(kind="stable")  # `stable` is fast here: both halves are sorted
    cuts = both[np.diff(both, prepend=-1) != 0]  # where a piece begins
    texts = np.searchsorted(ends, cuts, side="right")
    windows = cuts // length
    begins = np.searchsorted(windows, np.arange(-(-total // length) + 1))
    return Packing(length, begins, texts, cuts - (ends - sizes)[texts], np.diff(np.append(cuts, total)))


def _pack_by_fit(sizes: np.ndarray, length: int, most: int | None) -> Packing:
    import numpy as np

    num_pieces = -(-sizes // length)
    texts = np.repeat(np.arange(len(sizes)), num_pieces)
    first = np.cumsum(num_pieces) - num_pieces
    offsets = (np.arange(len(texts)) - first[texts]) * length
    lengths = np.minimum(sizes[texts] - offsets, length)
    windows = _windows_by_fit(lengths, length, most or length)
    _, first_pieces, windows = np.unique(windows, return_index=True, return_inverse=True)
    windows = np.argsort(np.argsort(first_pieces))[windows]  # samples in the order of their first texts
    order = np.argsort(windows, kind="stable")  # pieces of a sample stay in the order of the texts
    begins = np.searchsorted(windows[order], np.arange(len(first_pieces) + 1))
    return Packing(length, begins, texts[order], offsets[order], lengths[order])


def _windows_by_fit(lengths: np.ndarray, length: int, most: int) -> np.ndarray:
    """Return the index of the sample into which each of P pieces of text is packed, (P,), by best-fit decreasing bin
    packing. `lengths`: tokens of each piece. `length`: tokens of a sample. `most`: the largest number of pieces in a
    sample."""
    import numpy as np

    found = np.empty(len(lengths), np.int64)
    counts = np.zeros(len(lengths), np.int64)  # pieces in each sample
    order = np.argsort(-lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order], prepend=-1)).tolist()
    room: dict[int, list[np.ndarray]] = {}  # free tokens -> arrays of samples with that many
    open_rooms = 0  # bit r is set where some sample has room for r more tokens
    num_windows = 0
    for start, stop in pairwise([*bounds, len(order)]):
        pieces, size = order[start:stop], int(lengths[order[start]])
        while len(pieces):
            enough = open_rooms >> size
            if enough:
                left = size + (enough & -enough).bit_length() - 1
                windows = room[left].pop()
                if not room[left]:
                    open_rooms &= ~(1 << left)
                if len(windows) > len(pieces):
                    room[left].append(windows[len(pieces) :])
                    open_rooms |= 1 << left
                    windows = windows[: len(pieces)]
            else:
                left, each = length, min(length // size, most)  # pieces of this size fill new samples together
                windows = np.arange(num_windows, num_windows + -(-len(pieces) // each))
                num_windows += len(windows)
                windows = np.repeat(windows, each)[: len(pieces)]
                filled = np.bincount(windows - windows[0])
                found[pieces], counts[windows[0] : windows[-1] + 1] = windows, filled
                rests = np.where(filled < most, length - filled * size, 0)
                for rest in np.unique(rests[rests > 0]):
                    room.setdefault(int(rest), []).append(windows[0] + np.flatnonzero(rests == rest))
                    open_rooms |= 1 << int(rest)
                break
            found[pieces[: len(windows)]] = windows
            pieces = pieces[len(windows) :]
            counts[windows] += 1
            windows = windows[counts[windows] < most]
            if left > size and len(windows):
                room.setdefault(left - size, []).append(windows)
                open_rooms |= 1 << (left - size)
    return found
