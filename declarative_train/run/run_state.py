"""The small state of a run: all that the loop must know to go on, beside the tensors and the plan. JSON-able."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


@dataclass(slots=True)
class RunState:
    """`step`: optimizer steps done. Epoch and position in the data follow from it.

    `best_*`: of checkpoint.best; `stop_*`: of training.early_stop, the step of the last improvement; `*_of`: the aim
    that they are of, `max validation/accuracy`.
    """

    step: int = 0
    best_of: str | None = None
    best_value: float | None = None
    best_step: int | None = None
    stop_of: str | None = None
    stop_value: float | None = None
    stop_step: int = 0
    seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)  # the latest of every evaluation
    value_steps: dict[str, int] = field(default_factory=dict)  # and the step whose weights it is of
    loss_scale: dict[str, float] | None = None
    logging: dict[str, Any] = field(default_factory=dict)  # the means since the last log (loss_window.Means)
    epoch: dict[str, Any] = field(default_factory=dict)  # and those of an epoch that is not over

    def aim(self, plan: Plan) -> list[str]:
        """The aims of the plan from here on. What was best under another one is forgotten; returns notices of it."""
        checkpoint, early = plan.checkpoint, plan.training.early_stop
        best_of = f"{checkpoint.best_mode} {checkpoint.best_metric}" if checkpoint and checkpoint.best_metric else None
        stop_of = f"{early.mode} {early.metric}" if early else None
        watched = {metric.name for metric in plan.objective.metrics}
        for means in (self.logging, self.epoch):  # what is no longer measured is no longer told
            if "metrics" in means:
                means["metrics"] = {name: pair for name, pair in means["metrics"].items() if name in watched}
        notices = []
        if best_of != self.best_of:
            if self.best_step is not None:
                notices.append(f"checkpoint.best was {self.best_of} and is {best_of}: the best starts anew")
            self.best_of, self.best_value, self.best_step = best_of, None, None
        if stop_of != self.stop_of:
            self.stop_of, self.stop_value, self.stop_step = stop_of, None, self.step
        return notices

    def as_json(self) -> dict[str, Any]:
        """nan and inf as strings: JSON has none."""
        return {name: _out(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> RunState:
        return cls(**{name: _in(value) for name, value in entries.items()})


def is_better(value: float, than: float | None, mode: str) -> bool:
    """nan is never better."""
    if value != value:
        return False
    return than is None or (value > than if mode == "max" else value < than)


def _out(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return {key: _out(item) for key, item in value.items()} if isinstance(value, dict) else value


def _in(value: Any) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return {key: _in(item) for key, item in value.items()} if isinstance(value, dict) else value
