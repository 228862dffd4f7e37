"""A training set that a run will keep on its GPU is part of the memory that the plan shows, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from declarative_train.app.api.tracer import LateTracer
from declarative_train.data.spec import may_lie_on_gpu
from declarative_train.data.tensor_sets import open_sets
from declarative_train.plan.codec import from_json, sign, to_json
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.text.describe import describe
from declarative_train.recipe import load
from declarative_train.run.memory_measurement import bytes_without_parameters, replace_set_bytes
from tests.plan.conftest import BASE

GPU = "layout.hardware=h100-sxm"


@pytest.fixture
def traced(tmp_path):  # type: ignore[no-untyped-def]
    def run(*set_: str) -> Plan:
        (tmp_path / "recipe.yaml").write_text(BASE)
        recipe = load(str(tmp_path / "recipe.yaml"), set_=set_).recipe
        assert recipe is not None
        plan, diagnostics = compile_plan(recipe, tracer=LateTracer())
        assert plan is not None, diagnostics
        return plan

    return run


def test_it_is_counted_and_shown(traced) -> None:
    plan = traced(GPU)
    held = plan.data.set("training").held_bytes
    assert held == open_sets(plan.data)["training"].held_bytes > 0
    (row,) = plan.memory
    assert row.held == held
    assert row.total == row.of_step + held
    assert plan.estimate is not None
    assert plan.estimate.memory_bytes == row.total
    assert "of the training set, which fits on the device" in describe(plan)
    assert from_json(to_json(plan)) == plan


@pytest.mark.parametrize("changes", [("layout.device=cpu",), (GPU, "data.workers=2")])
def test_elsewhere_it_is_not(traced, changes: tuple[str, ...]) -> None:
    plan = traced(*changes)
    assert all(row.held == 0 for row in plan.memory)
    assert "are the training set" not in describe(plan)


def test_whether_a_plan_fits_does_not_depend_on_it(traced) -> None:
    """It stays on the host where there is no room; `auto` judges the step alone."""
    plan = traced(GPU, "parallelism=auto", "layout.gpus=2")
    assert plan.choice is not None
    taken = next(each for each in plan.choice.candidates if each.verdict == "taken")
    assert taken.memory_bytes == max(row.of_step for row in plan.memory) < max(row.total for row in plan.memory)


@pytest.mark.parametrize(
    ("held", "free", "steps", "lies"), [(8, 100, 50, True), (13, 100, 50, False), (8, 60, 53, False)]
)
def test_of_what_is_free_an_eighth_and_what_the_steps_leave(held: int, free: int, steps: int, lies: bool) -> None:
    assert may_lie_on_gpu(held, free, steps) is lies


def test_a_run_counts_what_it_really_put_there(traced) -> None:
    plan = traced(GPU)
    (row,) = plan.memory
    for number in (0, 123):
        found = replace_set_bytes(plan, number)
        assert found.memory[0].total == row.of_step + number
        assert found.estimate is not None
        assert found.estimate.memory_bytes == row.of_step + number
    assert bytes_without_parameters(plan, 0) == row.of_step - row.parameters


def test_runs_of_before_are_known_again(traced) -> None:
    """Plans did not say how large a set is, and it decides nothing."""
    plan = traced(GPU)
    sets = tuple(replace(each, held_bytes=0) for each in plan.data.sets)
    assert sign(replace(plan, data=replace(plan.data, sets=sets))).fingerprint == plan.fingerprint
