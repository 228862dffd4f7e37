"""How the ranks of a run share the work: a mesh, which is a product of named axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Axis = Literal["pipeline", "replicate", "shard"]

DATA_AXES: tuple[Axis, ...] = ("replicate", "shard")  # whose ranks take different rows of a batch


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """`pipeline`: the ranks hold different stages of the model. `replicate`: each holds a whole copy (of a stage, or
    of all shards), gradients are averaged. `shard`: each holds a part of every parameter."""

    name: Axis
    size: int


Mesh = tuple[MeshAxis, ...]
"""Outermost first: what travels along a later axis is more, so its ranks are neighbours. Empty: one process."""


def size_of(mesh: Sequence[MeshAxis], *names: Axis) -> int:
    """The ranks along these axes, 1 along one that the mesh does not have."""
    return prod(axis.size for axis in mesh if axis.name in names)
