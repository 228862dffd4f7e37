"""The columns of TensorBoard's table of runs: what a recipe decides, as flat numbers and words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

Value = str | int | float | bool


def hyperparameters(plan: Plan) -> dict[str, Value]:
    """Dotted as in the recipe; None is left out."""
    training = plan.training
    found: dict[str, Value] = {"seed": plan.seed, "mode": plan.layout.mode, "ranks": len(plan.layout.ranks)}
    found |= {
        "global_batch_size": plan.batch.global_batch_size,
        "gradient_accumulation_steps": plan.batch.accumulation,
        "steps": training.num_steps,
        "precision": training.precision,
        "parameters": sum(item.num_elements for item in plan.parameters if item.tie is None),
    }
    if training.clip_grad_norm is not None:
        found["clip_grad_norm"] = training.clip_grad_norm
    found |= _flat("optimizer", training.optimizer)
    found |= _flat("lr_schedule", training.lr_schedule)
    return found


def _flat(prefix: str, fields: Mapping[str, object]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in fields.items():
        key = prefix if name == "type" else f"{prefix}.{name}"
        if isinstance(value, bool | int | float | str):
            found[key] = value
        elif isinstance(value, list | tuple):
            found[key] = ", ".join(map(str, value))
    return found
