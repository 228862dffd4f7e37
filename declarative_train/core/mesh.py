"""Mesh of ranks: a product of named axes, along which the ranks of a run share the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Axis = Literal["pipeline", "replicate", "shard", "expert", "context", "tensor"]

DATA_AXES: tuple[Axis, ...] = ("replicate", "shard", "expert")  # ranks along these axes read different rows of a batch


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """Axis of a mesh.

    `pipeline`: the ranks hold different stages of the model. `replicate`: each rank holds a whole copy (of a stage, or
    of all shards) and gradients are averaged. `shard`: each rank holds a part of every parameter. `expert`: each rank
    holds some experts of a mixture, and sends its rows to the ranks of their experts; of other layers it holds the same
    as the ranks along `replicate` or `shard`. `context`: the ranks read the same rows, and each computes its positions
    of them. `tensor`: the ranks read the same rows, and each computes a part of the features, heads or vocabulary of a
    layer.
    """

    name: Axis
    size: int


Mesh = tuple[MeshAxis, ...]
"""Axes, outermost first. Later axes carry more traffic, so their ranks are neighbours. Empty: one process."""


def size_of(mesh: Sequence[MeshAxis], *names: Axis) -> int:
    """Return the number of ranks along these axes. An axis that the mesh does not have counts as 1."""
    return prod(axis.size for axis in mesh if axis.name in names)


def coordinates(rank: int, mesh: Sequence[MeshAxis]) -> dict[str, int]:
    """Return the coordinates of a rank by mesh axis. Neighbouring ranks differ in the last axis."""
    found: dict[str, int] = {}
    for axis in reversed(mesh):
        rank, found[axis.name] = divmod(rank, axis.size)
    return {axis.name: found[axis.name] for axis in mesh}
