"""Difference between a rank's part of a tensor and the same part as a single process computes it, and bounds for this
difference."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from declarative_train.tools.verify.step_files import Place, part_at, pieces


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of the differences that rounding alone may cause between a step on several ranks and the same step in one
    process. All but `floor` are fractions of the value in parentheses.

    start      initial values of a parameter (its largest element)
    node       output of a layer (largest sum of absolute values of a sample's output); running statistic (its change)
    gradient   gradient of a parameter (its largest element); loss (the loss)
    update     change of a parameter by equal gradients (its largest change); gradient norm (the norm)
    floor      least value in parentheses for a gradient, as a fraction of the largest element of all gradients, because
               small gradients are mostly rounding. The same for changes of running statistics"""

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
    """Difference between a rank's part of a tensor and the same part in the single process.

    difference  largest absolute difference
    at          its index in the whole tensor
    found       value of the rank at this index
    expected    value of the single process at this index
    places      position and shape of each block of the tensor that the rank has
    ratio       factor that brings the expected values nearest to the found ones
    rest        largest difference after this factor is applied
    digest      sum of the rank's values, equal on ranks with the same part
    """

    difference: float = 0.0
    at: tuple[int, ...] = ()
    found: float = 0.0
    expected: float = 0.0
    ratio: float = 1.0
    rest: float = 0.0
    digest: float = 0.0
    places: list[Place] = field(default_factory=list)


def deviate(parts: Iterable[tuple[torch.Tensor, tuple[int, ...]]], whole: torch.Tensor) -> Deviation:
    """Compare a rank's parts of a tensor with `whole`, the tensor of the single process. `parts`: pairs (values of a
    part, index in `whole` of its first value). The comparison runs on the CPU, a few rows at a time."""
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
