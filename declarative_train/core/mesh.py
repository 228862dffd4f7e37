"""Mesh of ranks: a product of named axes of parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Axis = Literal["pipeline", "replicate", "shard", "expert", "context", "tensor"]

DATA_AXES: tuple[Axis, ...] = ("replicate", "shard", "expert")  # ranks along these axes read different rows of a batch


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """Axis of a mesh: its name and its number of ranks.

    pipeline   the ranks hold different stages of the model
    replicate  the ranks hold copies of the same parameters, and average the gradients
    shard      each rank holds a part of every parameter
    expert     each rank holds some experts, and rows are sent to them; other layers are as along `replicate` or `shard`
    context    the ranks read the same rows, and each computes some positions of them
    tensor     the ranks read the same rows, and each computes some features, heads or vocabulary of a layer"""

    name: Axis
    size: int


Mesh = tuple[MeshAxis, ...]
"""Axes, outermost first. Later axes carry more traffic, so their ranks are neighbours. Empty: one process."""


def size_of(mesh: Sequence[MeshAxis], *names: Axis) -> int:
    """Return the product of the sizes of the axes `names`. An axis that the mesh does not have counts as 1."""
    return prod(axis.size for axis in mesh if axis.name in names)


def coordinates(rank: int, mesh: Sequence[MeshAxis]) -> dict[str, int]:
    """Return {axis name: position of the rank along this axis}. Consecutive ranks differ first in the position along
    the last axis of the mesh."""
    found: dict[str, int] = {}
    for axis in reversed(mesh):
        rank, found[axis.name] = divmod(rank, axis.size)
    return {axis.name: found[axis.name] for axis in mesh}
