"""The columns of TensorBoard's table of runs: what a recipe decides, as flat numbers and words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from declarative_train.plan.settings import asked_for, telling

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

Value = str | int | float | bool
_SHORT = {
    "parallelism": "mode",
    "training.optimizer.lr": "lr",
    "training.optimizer.type": "optimizer",
    "training.lr_schedule.type": "lr_schedule",
}
_ALWAYS = ("training.", "vars.", "seed")


def hyperparameters(plan: Plan) -> dict[str, Value]:
    """By importance: mode and lr first. All of `training`, the vars, and what was asked for by `--set` or a sweep;
    None is left out."""
    training = plan.training
    found: dict[str, Value] = {"mode": plan.layout.mode, "ranks": len(plan.layout.ranks)}
    asked = asked_for(plan.overrides, plan.settings)
    for key in telling(key for key in plan.settings if key in asked or key.startswith(_ALWAYS)):
        found |= _flat(tensorboard_name(key), plan.settings[key])
    found |= {"steps": training.num_steps, "global_batch_size": plan.batch.global_batch_size}
    found["parameters"] = sum(item.num_elements for item in plan.parameters if item.tie is None)
    found.setdefault("optimizer", str(training.optimizer["type"]))
    if isinstance(lr := training.optimizer.get("lr"), int | float):
        found.setdefault("lr", lr)
    return found


def tensorboard_name(key: str) -> str:
    """The column of a setting."""
    return _SHORT.get(key, key.removeprefix("training."))


def _flat(name: str, value: object) -> dict[str, Value]:
    if isinstance(value, bool | int | float | str):
        return {name: value}
    return {name: ", ".join(map(str, value))} if isinstance(value, list | tuple) else {}
