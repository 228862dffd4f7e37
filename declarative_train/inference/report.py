"""Results of an evaluation for one output, in a form that does not depend on how they are shown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Metrics of one class or label. `support`: the number of items whose target is this class. `average_precision`:
    only for labels; None if it was not computed."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    average_precision: float | None = None


@dataclass(frozen=True, slots=True)
class WorstSample:
    """Sample with a large error. `place`: its file and row, as text. `row`: values of its columns. `loss`: the negative
    log-probability of the target or, for numbers, the distance to the target in the target's unit; the mean over the
    items of the sample. `probability`: the probability of the predicted class or, for yes or no, that of yes; None for
    numbers and for samples with several items."""

    place: str
    loss: float
    target: object
    predicted: object
    probability: float | None
    row: dict[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """Report on the predictions of one output. `kind`: class, yes_no or number. `confusion[i][j]`: the number of items
    of class i that were predicted as class j. `residuals`: for numbers, quantiles of prediction - target. `worst`: the
    samples with the largest errors. `points`: some pairs (target, prediction), for a picture."""

    name: str
    kind: str
    metrics: dict[str, float]
    classes: tuple[ClassScores, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = ()
    residuals: dict[str, float] = field(default_factory=dict)
    worst: tuple[WorstSample, ...] = ()
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Simple models, evaluated on the same rows as the trained model. `values`: {name of a simple model: its value of
    `metric`}."""

    metric: str
    values: dict[str, float]
    note: str = ""

    def line(self, own: float | None = None) -> str:
        """Return the comparison as one line of text. `own`: the value of the trained model, which is shown too; None:
        left out."""
        shown = self.values if own is None else {**self.values, "this model": own}
        return f"{self.metric}: {', '.join(f'{name} {value:.3f}' for name, value in shown.items())}"
