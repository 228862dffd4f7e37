"""Cuts: how the ranks of the axes `tensor`, `expert` and `context` divide a layer and its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, NamedTuple

CutKind = Literal[
    "columns",
    "rows",
    "split",
    "heads",
    "vocabulary",
    "gathered",
    "hidden",
    "experts",
    "inside",
    "shared",
    "features",
    "tokens",
    "positions",
]
"""How a layer is divided over ranks.

columns     each rank computes a part of the output features, from the whole input
rows        each rank reads a part of the input features; the outputs of all ranks are summed
split       as `rows`, but each rank gets the whole input, and takes its part of the features
heads       each rank computes some heads of attention, from the whole input; the outputs are summed
vocabulary  each rank holds the rows of some words: an embedding sums the outputs, a head gives the scores of its
            words to a loss that adds up over the ranks
hidden      each rank computes some hidden features of each expert; the outputs are summed
experts     each rank of `expert` computes some experts, for the rows that all ranks send to it
inside      the layer is a model of a library, whose parts are divided (`LayerCut.parts`)
shared      part of such a model that each rank computes whole, but whose result it uses for its own heads only, so that
            gradients are summed
gathered    as `columns`, but the outputs of all ranks are gathered, for a head whose scores are used together
tokens      the output of a position depends on the input at this position only, so each rank computes its positions
positions   as `tokens`, for the `context` axis; or the layer itself exchanges what it needs of other positions
features    an output element depends on the same feature of the inputs only, so each rank computes its features"""


@dataclass(frozen=True, slots=True)
class ParameterCut:
    """Division of a parameter over ranks, along its dimension `dim`.

    This dimension consists of consecutive pieces of the sizes `pieces`. Each rank holds an equal part of every piece. A
    fused `qkv` weight has three pieces, one each for q, k and v. Most parameters have one piece."""

    dim: int
    pieces: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeCut:
    """Division of a node of the graph, or of a submodule of a node, over the ranks of the `tensor` or `expert` axis.

    `kind`: how it is divided; "" if every rank has the whole node, and then `reason` says why. `sent`: for experts in a
    library's model, how many elements are sent to the experts for each position; otherwise 0."""

    kind: CutKind | Literal[""]
    reason: str = ""
    sent: int = 0


@dataclass(frozen=True, slots=True)
class LayerCut:
    """Division of a layer over the ranks of the `tensor`, `expert` or `context` axis.

    kind        how the layer is divided
    parameters  division of each divided parameter, by name; every rank has a copy of all others
    summed      undivided parameters whose gradients are summed over ranks, because a rank uses them for some features
    whole       for kind "positions": names of the inputs and outputs that are not divided, but equal on all ranks
    parts       for kind "inside" (a model of a library): division of each submodule with parameters, by path
    """

    kind: CutKind
    parameters: dict[str, ParameterCut]
    summed: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    parts: Mapping[str, NodeCut] = field(default_factory=dict)


NO_CUTS: Mapping[str, RankCut] = {}


class Block(NamedTuple):
    """Rectangular block of elements of a parameter, on one rank. `sizes`: its shape. `local`: index of its first
    element in the rank's tensor. `whole`: index of the same element in the undivided parameter."""

    local: tuple[int, ...]
    whole: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RankCut:
    """Part of a divided parameter that one rank holds. `cut`: how the parameter is divided. `size`: the number of ranks
    that share the parameter. `index`: the number of this rank among them, from 0."""

    cut: ParameterCut
    index: int
    size: int

    def local_shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of this rank's part of a parameter whose undivided shape is `whole`."""
        return tuple(length // self.size if dim == self.cut.dim else length for dim, length in enumerate(whole))

    def whole_shape(self, local: Sequence[int]) -> tuple[int, ...]:
        """Return the undivided shape of a parameter. `local`: shape of this rank's part."""
        return tuple(length * self.size if dim == self.cut.dim else length for dim, length in enumerate(local))

    def blocks(self, local: Sequence[int], rows: range | None = None) -> Iterator[Block]:
        """Yield a Block for each consecutive part of the whole parameter that this rank has, such as its q, k and v of
        a fused `qkv`. `local`: shape of this rank's tensor.

        `rows`: yield only what is in these rows of this rank's tensor, and count `Block.local` from the first of them;
        None: all rows. `fully_shard`, which divides this tensor further, needs this."""
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
