"""JSON object that `dtrain fits --json` prints.

Its entry `trainjob_patch` is for Kubeflow Trainer and follows the draft KEP-3328: a plugin changes only the number of
nodes (`spec.trainer.numNodes`) of a suspended TrainJob, and sets an annotation when it has finished. The entry is null
if the target does not fit."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from declarative_train.planner.estimate.runtime_memory import runtime_memory
from declarative_train.tools.fits.certainty import MEMORY_ERROR, step_interval

if TYPE_CHECKING:
    from declarative_train.tools.fits.answer import Fits

DONE = "trainer.kubeflow.org/autoconf-plugin-done"


def as_data(found: Fits) -> dict[str, Any]:
    plan, step_s = found.plan, found.estimate.step_s
    low, high = step_interval(plan)
    memory = max(plan.memory, key=lambda each: each.of_step)
    classes = ("parameters", "gradients", "optimizer", "gathered", "activations", "loss", "data")
    return {
        "target": found.target,
        "computed_by": found.through or "recipe",
        "fits": found.fits,
        "gpu": found.hardware.name,
        "num_gpus": found.num_gpus,
        "num_nodes": plan.layout.num_nodes,
        "memory_bytes": found.memory_bytes,
        "usable_bytes": found.usable_bytes,
        "memory_by_class_bytes": {name: getattr(memory, name) for name in classes},
        "runtime_memory": [asdict(each) for each in runtime_memory(plan)],
        "changes": [asdict(each) for each in found.changes],
        "layouts": [
            {
                "parallelism": each.parallelism,
                "memory_bytes": each.memory_bytes,
                "step_s": each.step_s,
                "is_least": each.is_least,
            }
            for each in found.layouts
        ],
        "global_batch_size": plan.batch.global_batch_size,
        "unit": found.unit,
        "step_s": step_s,
        "step_s_interval": None if step_s is None else [low * step_s, high * step_s],
        "memory_error": MEMORY_ERROR,
        "per_second": found.per_second,
        "per_day": None if found.per_second is None else found.per_second * 86400,
        "budget": found.budget,
        "hours": found.hours,
        "energy_kwh": found.energy_kwh,
        "cost": found.cost,
        "notes": list(found.notes),
        "trainjob_patch": _patch(plan.layout.num_nodes) if found.fits else None,
    }


def _patch(num_nodes: int) -> dict[str, Any]:
    """Return the JSON merge patch that a plugin of Kubeflow applies to a TrainJob: the number of nodes, and an
    annotation that says that the plugin has finished."""
    return {"metadata": {"annotations": {DONE: "yes"}}, "spec": {"trainer": {"numNodes": num_nodes}}}
