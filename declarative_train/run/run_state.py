"""State of a run that its checkpoints contain as JSON, next to the tensors and the plan."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


@dataclass(slots=True)
class RunState:
    """State that the training loop needs to resume. `best_...`: for the metric of `checkpoint.best`. `stop_...`: for
    that of `training.early_stop`.

    step                    completed optimizer steps, from which epoch and position in the data follow
    seconds                 training time so far
    best_of, stop_of        mode and name, such as `max validation/accuracy`
    best_value, stop_value  best value so far
    best_step, stop_step    step of this value
    """

    step: int = 0
    best_of: str | None = None
    best_value: float | None = None
    best_step: int | None = None
    stop_of: str | None = None
    stop_value: float | None = None
    stop_step: int = 0
    seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)  # latest value of every evaluation metric
    value_steps: dict[str, int] = field(default_factory=dict)  # step whose weights each value was measured with
    loss_scale: dict[str, float] | None = None
    logging: dict[str, Any] = field(default_factory=dict)  # means since the last logged step (loss_window.Means)
    epoch: dict[str, Any] = field(default_factory=dict)  # means of the current, unfinished epoch

    def adopt_targets(self, plan: Plan) -> list[str]:
        """Adopt the metrics that `plan` watches for `checkpoint.best` and `training.early_stop`. If one of the two now
        watches another metric, discard its best value. Also drop the sums of metrics that the plan no longer has.
        Return [notice] if the value of the best checkpoint is discarded, else []."""
        checkpoint, early = plan.checkpoint, plan.training.early_stop
        best_of = f"{checkpoint.best_mode} {checkpoint.best_metric}" if checkpoint and checkpoint.best_metric else None
        stop_of = f"{early.mode} {early.metric}" if early else None
        watched = {metric.name for metric in plan.objective.metrics}
        for means in (self.logging, self.epoch):  # drop metrics that the plan does not have
            if "metrics" in means:
                means["metrics"] = {name: pair for name, pair in means["metrics"].items() if name in watched}
        notices = []
        if best_of != self.best_of:
            if self.best_step is not None:
                notices.append(
                    f"checkpoint.best was {self.best_of} and is {best_of}: the earlier best value is discarded"
                )
            self.best_of, self.best_value, self.best_step = best_of, None, None
        if stop_of != self.stop_of:
            self.stop_of, self.stop_value, self.stop_step = stop_of, None, self.step
        return notices

    def as_json(self) -> dict[str, Any]:
        """Return the state as values that JSON can represent; nan and inf become strings."""
        return {name: _encode(value) for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, entries: dict[str, Any]) -> RunState:
        return cls(**{name: _decode(value) for name, value in entries.items()})


def is_better(value: float, than: float | None, mode: str) -> bool:
    """Return whether `value` is better than `than`, the best value so far (None: there is none yet). `mode`: `max` if
    larger values are better, `min` if smaller ones are. nan is never better."""
    if value != value:
        return False
    return than is None or (value > than if mode == "max" else value < than)


def _encode(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    return {key: _encode(item) for key, item in value.items()} if isinstance(value, dict) else value


def _decode(value: Any) -> Any:
    if value in ("nan", "inf", "-inf"):
        return float(value)
    return {key: _decode(item) for key, item in value.items()} if isinstance(value, dict) else value
