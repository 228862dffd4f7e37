"""Result of an evaluation in the Python API, displayed in the form of `dtrain evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from declarative_train.app.api.display import text_html
from declarative_train.app.views.evaluation import evaluation_text

if TYPE_CHECKING:
    from declarative_train.inference.evaluate import EvaluationResult
    from declarative_train.inference.report import Report

WIDTH = 100


class Evaluation:
    """Result of an evaluation.

    values       the loss and the metrics of the recipe, by `<set>/<name>`
    reports      for each output of the model: metrics, classes, confusion, residuals, worst samples
    num_samples  the number of samples that were evaluated
    """

    def __init__(self, result: EvaluationResult) -> None:
        self.values: dict[str, float] = result.values
        self.reports: tuple[Report, ...] = result.reports
        self.num_samples: int = result.num_samples
        self._result = result

    def __getattr__(self, name: str) -> Any:
        """Return an attribute that this class does not define, such as `notices` or `comparison`, from the
        EvaluationResult that it wraps."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._result, name)

    def __str__(self) -> str:
        return evaluation_text(self._result, WIDTH)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name} {value:.4g}" for name, value in list(self.values.items())[:4])
        return f"<Evaluation {self._result.trained}, {self._result.set}: {self.num_samples:,} samples, {shown}>"

    def _repr_html_(self) -> str:
        return text_html(str(self), headings=True)
