"""Difference between a rank's part of a tensor and the same part in one process, and the bounds for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from declarative_train.tools.verify.step_files import Place, part_at, pieces


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest differences that rounding may cause, each relative to the largest element of what is compared.

    start      of initial values
    node       of the output of a node, relative to the sum of its absolute values for a sample
    gradient   of a gradient, and of a loss
    floor      a gradient counts as at least this part of the model's largest one: below it, it is rounding
    update     of a parameter's change, computed from equal gradients
    """

    start: float
    node: float
    gradient: float
    floor: float
    update: float


BOUNDS = {
    "fp64": Bounds(1e-12, 1e-9, 1e-8, 1e-6, 1e-8),
    "fp32": Bounds(1e-6, 1e-4, 5e-4, 1e-3, 1e-3),
    "fp16": Bounds(1e-6, 1e-2, 3e-2, 1e-2, 1e-3),
    "bf16": Bounds(1e-6, 5e-2, 0.15, 2e-2, 1e-3),
}
WIDE = {"tf32": Bounds(1e-6, 1e-2, 3e-2, 1e-2, 1e-3)}


@dataclass(slots=True)
class Deviation:
    """Largest absolute difference of a rank's part, and where: `found` instead of `expected` at `at`. `places`: the
    blocks that the rank holds. `ratio`: the number by which the expected values must be multiplied to come nearest to
    the found ones; `rest`: the largest difference that then remains. `digest`: of the values, to compare ranks."""

    difference: float = 0.0
    at: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0
    ratio: float = 1.0
    rest: float = 0.0
    digest: float = 0.0
    places: list[Place] = field(default_factory=list)


def deviate(parts: Iterable[tuple[torch.Tensor, tuple[int, ...]]], whole: torch.Tensor) -> Deviation:
    """Compare a rank's parts with those of a whole tensor on the host, a piece at a time."""
    made = Deviation()
    parts = list(parts)
    product = square = 0.0
    for values, first in parts:
        made.places.append((first, tuple(values.shape)))
        for piece, begin in pieces(values.detach(), first):
            mine = piece.cpu().double()
            theirs = part_at(whole, begin, tuple(piece.shape)).double()
            apart = (mine - theirs).abs().nan_to_num(float("inf"), float("inf"))
            product += float((mine * theirs).sum())
            square += float((theirs * theirs).sum())
            made.digest += float(mine.sum())
            largest = float(apart.max())
            if largest > made.difference:
                place = torch.unravel_index(apart.argmax(), apart.shape) if apart.dim() else ()
                inside = tuple(int(each) for each in place)
                made.difference = largest
                made.found, made.expected = float(mine[inside]), float(theirs[inside])
                made.at = tuple(start + each for start, each in zip(begin, inside, strict=True))
    if made.difference and square:
        made.ratio = product / square
        for values, first in parts:
            for piece, begin in pieces(values.detach(), first):
                theirs = part_at(whole, begin, tuple(piece.shape)).double()
                made.rest = max(made.rest, float((piece.cpu().double() - made.ratio * theirs).abs().max()))
    return made
