"""What an evaluation tells of one output, whoever shows it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OfClass:
    """`support`: how many items are of the class."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True, slots=True)
class Worst:
    """A sample far from its target. `loss`: minus the logarithm of the right class's probability, or the distance in
    the target's unit."""

    place: str
    loss: float
    target: object
    predicted: object
    probability: float | None
    row: dict[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """On one output. `confusion[i][j]`: items of class i that were taken for class j. `points`: some pairs (target,
    predicted), for a picture."""

    name: str
    kind: str
    metrics: dict[str, float]
    classes: tuple[OfClass, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    residuals: dict[str, float] = field(default_factory=dict)
    worst: tuple[Worst, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
