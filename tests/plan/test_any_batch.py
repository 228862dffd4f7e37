"""Whatever batch, devices and mode a recipe asks for, it becomes a plan, or an error that says why not."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.estimate.model import ModelFacts
from declarative_train.planner.estimate.tracing import TraceResult
from declarative_train.recipe import load
from tests.engine.made_recipes import DEEP, merged, write_data, write_recipe


class NoTraces:
    """A tracer that finds nothing, except which the plans to trace are made."""

    spent_s = 0.0

    def __init__(self) -> None:
        self.num_asked = 0

    def memory(self, plan: Plan) -> TraceResult:
        self.num_asked += 1
        return TraceResult((), "not tried")

    def scale(self, plan: Plan, model: ModelFacts) -> None:
        self.num_asked += 1


def drawn(draw: random.Random) -> dict[str, Any]:
    """Return changes of a recipe: most of them do not divide."""
    axes: dict[str, Any] = {}
    if draw.random() < 0.6:
        axes["pipeline"] = {
            "stages": draw.randint(1, 8),
            "schedule": draw.choice(["gpipe", "1f1b", "interleaved_1f1b", "zbv"]),
            "microbatches": draw.randint(1, 6),
        }
    if draw.random() < 0.6 or not axes:
        axes["data"] = {draw.choice(["replicate", "shard"]): draw.choice(["all", 1, 2, 3, 4])}
    training: dict[str, Any] = {"global_batch_size": draw.randint(1, 40), "compile": draw.random() < 0.2}
    if draw.random() < 0.5:
        training[draw.choice(["gradient_accumulation_steps", "microbatch_size"])] = draw.randint(1, 6)
    return {
        "data": {"last_batch": draw.choice(["keep", "drop"])},
        "training": training,
        "parallelism": draw.choice(["auto", "auto", "auto", "single", "dp", "ddp", "fsdp", axes, axes, axes]),
        "layout": draw.choice([{"gpus": draw.randint(1, 16)}, {"nodes": draw.randint(1, 4), "gpus_per_node": 4}]),
    }


@pytest.mark.parametrize("seed", [0, 1, 2, 7])
def test_a_recipe_becomes_a_plan_or_an_error(tmp_path: Path, seed: int) -> None:
    write_data(tmp_path, 30)
    draw, tracer = random.Random(seed), NoTraces()
    plans = refusals = 0
    for _ in range(12):
        changes = drawn(draw)
        loaded = load(str(write_recipe(tmp_path, merged(DEEP, changes))))
        plan, diagnostics = None, list(loaded.diagnostics)
        if loaded.recipe is not None:
            plan, found = compile_plan(loaded.recipe, tracer=tracer, traces_all=True)
            diagnostics += found
        assert (plan is None) == any(each.is_error for each in diagnostics), (changes, diagnostics)
        plans, refusals = plans + (plan is not None), refusals + (plan is None)
    assert min(plans, refusals, tracer.num_asked) > 0
