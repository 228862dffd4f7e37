"""Results of an evaluation for one output of a model, as plain data, without formatting."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClassScores:
    """Metrics of one class or label. `support`: number of items whose target is this class. `average_precision`: only
    for labels; None if it was not computed."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    average_precision: float | None = None


@dataclass(frozen=True, slots=True)
class WorstSample:
    """Sample with a large error.

    place        its file and row, as text
    loss         classes and yes/no: negative log-probability of the target; numbers: distance to the target, in the
                 target's unit. For a sample with several items, their mean
    probability  of the predicted class, or of yes; None for numbers and for samples with several items
    row          values of the table's columns
    """

    place: str
    loss: float
    target: object
    predicted: object
    probability: float | None
    row: dict[str, object]


@dataclass(frozen=True, slots=True)
class Report:
    """Report on the predictions of one output. `kind`: class, yes_no or number. `confusion[i][j]`: number of items of
    class i that were predicted as class j. `residuals`: for numbers, quantiles of prediction - target. `worst`: samples
    with the largest errors. `points`: some pairs (target, prediction), to be drawn."""

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
    """Values of a metric for simple models, on the rows on which the trained model was evaluated. `values`: a dict from
    the name of a simple model to its value."""

    metric: str
    values: dict[str, float]
    note: str = ""

    def line(self, own: float | None = None) -> str:
        """Return the values as one line of text. `own`: value of the trained model, which the line shows as `this
        model`; None: it shows only the simple models."""
        shown = self.values if own is None else {**self.values, "this model": own}
        return f"{self.metric}: {', '.join(f'{name} {value:.3f}' for name, value in shown.items())}"
