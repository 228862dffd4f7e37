"""Cuts: how the ranks of the `tensor` axis divide a layer and its parameters, as numbers only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

CutKind = Literal[
    "columns", "rows", "heads", "vocabulary", "gathered", "hidden", "experts", "features", "tokens", "positions"
]
"""How a layer is divided over ranks.

columns     each rank computes a part of the output features, from the whole input
rows        each rank reads a part of the input features; the outputs of all ranks are summed
heads       each rank computes some heads of attention, from the whole input; the outputs are summed
vocabulary  each rank holds the rows of some words: an embedding sums the outputs, a head gives the scores of its
            words to a loss that adds up over the ranks
hidden      each rank computes some hidden features of each expert; the outputs are summed
experts     each rank of `expert` computes some experts, for the rows that all ranks send to it
gathered    as columns, but the output is gathered: a head whose scores are read whole
tokens      the output of a position depends on the input at this position only, so each rank computes its positions
positions   as tokens, for the `context` axis: or the layer exchanges what it needs of other positions itself
features    an output element depends on the same feature of the inputs only, so each rank computes its features
"""


@dataclass(frozen=True, slots=True)
class ParameterCut:
    """Cut of a parameter along dimension `dim`, which consists of `pieces` (their sizes); each rank holds an equal part
    of every piece. A fused `qkv` has three pieces, most parameters have one."""

    dim: int
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Cut of a layer: its kind, those of its parameters that are cut, and the whole ones of which each rank computes a
    part of the gradient (`summed`), as each uses them on its own part of the features."""

    kind: CutKind
    parameters: dict[str, ParameterCut]
    summed: tuple[str, ...] = ()


NO_CUTS: Mapping[str, RankCut] = {}


class Block(NamedTuple):
    """Block of a tensor: its first element and its size along each dimension, in the local tensor and in the whole
    one."""

    local: tuple[int, ...]
    whole: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankCut:
    """Part of a parameter that rank `index` of `size` holds."""

    cut: ParameterCut
    index: int
    size: int

    def local_shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of this rank's part of a parameter of shape `whole`."""
        return tuple(length // self.size if dim == self.cut.dim else length for dim, length in enumerate(whole))

    def whole_shape(self, local: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of the parameter of which this rank's part has shape `local`."""
        return tuple(length * self.size if dim == self.cut.dim else length for dim, length in enumerate(local))

    def blocks(self, local: Sequence[int], rows: range | None = None) -> Iterator[Block]:
        """Yield the contiguous blocks of this rank's part, which has shape `local`.

        `rows`: yield these rows (dimension 0) of the part only, as `fully_shard` divides it further; `Block.local` then
        counts from the first of them.
        """
        rows = range(local[0]) if rows is None else rows
        dim, held, before = self.cut.dim, 0, 0  # elements along `dim` in the local and in the whole tensor
        for piece in self.cut.pieces:
            length = piece // self.size
            whole_first = before + self.index * length
            part = _intersect(range(held, held + length), rows) if dim == 0 else range(held, held + length)
            offset, first, sizes = [0] * len(local), [0] * len(local), list(local)
            offset[0], first[0], sizes[0] = 0, rows.start, len(rows)
            offset[dim], first[dim], sizes[dim] = part.start, whole_first + part.start - held, len(part)
            if dim == 0:
                offset[0] -= rows.start
            if prod(sizes):
                yield Block(tuple(offset), tuple(first), tuple(sizes))
            held, before = held + length, before + piece


def _intersect(one: range, other: range) -> range:
    low = max(one.start, other.start)
    return range(low, max(low, min(one.stop, other.stop)))
