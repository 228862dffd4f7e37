"""`training.ema`: what it is, where it is kept, and what is evaluated and used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from declarative_train.engine.step.ema import Average
from declarative_train.engine.step.model_preparation import fill, whole_model
from declarative_train.inference.trained import UsageError, open_trained
from declarative_train.run.event import EvaluationDone
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, on_pipeline, write_data
from tests.engine.runs import assert_same_tensors, checkpoints, go

AVERAGED: dict[str, Any] = merged(
    DEEP, {"training": {"ema": {"decay": 0.9}, "precision": "fp64"}, "checkpoint": {"every": "1 step", "keep": 100}}
)
STEPS, STOP = 21, 10
SHORT = {"training": {"epochs": 1}, "checkpoint": {"best": None}}


def averages(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.partition("/")[2]: item for name, item in tensors.items() if name.startswith("ema/")}


def test_a_skipped_step_moves_nothing() -> None:
    model = torch.nn.Linear(3, 2)
    average = Average(dict(model.named_parameters()), model)
    wanted = [item.detach().clone() for item in model.parameters()]
    for made in (None, torch.tensor(True), torch.tensor(False)):
        with torch.no_grad():
            for item in model.parameters():
                item.add_(1)
        average.update(0.9, made)
        if made is None or made:
            get_ema_multi_avg_fn(0.9)(wanted, [item.detach() for item in model.parameters()], 1)
    for found, other in zip(average.tensors.values(), wanted, strict=True):
        torch.testing.assert_close(found, other)


def test_the_decay_grows_with_the_step_up_to_its_value(tmp_path: Path) -> None:
    write_data(tmp_path)
    training = compiled(tmp_path, AVERAGED).training
    assert [training.ema_decay_at(step) for step in (1, 2, 80, 81, 1000)] == [2 / 11, 3 / 12, 0.9, 0.9, 0.9]


def test_a_stage_that_trains_nothing_has_none() -> None:
    average = Average({}, torch.nn.Linear(3, 2))
    average.update(0.9, None)
    average.update(0.9, torch.tensor(True))
    assert average.tensors == {}


@pytest.mark.long
def test_in_a_pipeline_whose_first_stage_trains_nothing(tmp_path: Path) -> None:
    """Its rank has no average, and none to exchange, to save or to load."""
    write_data(tmp_path)
    frozen = {"model": {"parameters": {"hidden": {"frozen": True}}}, "evaluation": {"weights": "ema"}}
    recipe = merged(merged(AVERAGED, merged(SHORT, frozen)), {"checkpoint": {"every": "3 steps"}})
    in_two = on_pipeline(2, "1f1b", 2, cuts=["layers.0"])
    done = go(tmp_path, recipe, in_two)
    assert done.code == 0
    found = checkpoints(done.run_dir)
    trained = {name.removeprefix("model/") for name in found[7].tensors if name.startswith("model/l")}
    assert averages(found[7].tensors).keys() == trained
    again = go(tmp_path, recipe, in_two, resume=str(done.run_dir / "checkpoints" / "step_00000003"))
    assert_same_tensors(checkpoints(again.run_dir)[7].tensors, found[7].tensors)


@pytest.mark.parametrize(
    "way", ["single", *(pytest.param(way, marks=pytest.mark.long) for way in ("dp 2", "ddp 2", "fsdp 2", "pipeline 2"))]
)
def test_it_is_the_average_that_torch_computes(tmp_path: Path, way: str) -> None:
    """`AveragedModel` gets the start values, then the parameters of each step."""

    def warm_up(averages: list[torch.Tensor], parameters: list[torch.Tensor], step: torch.Tensor) -> None:
        decay = min(0.9, (1 + int(step)) / (10 + int(step)))
        get_ema_multi_avg_fn(decay)(averages, parameters, step)

    write_data(tmp_path)
    done = go(tmp_path, AVERAGED, WAYS[way], SHORT)
    assert done.code == 0
    plan = compiled(tmp_path, merged(AVERAGED, SHORT))
    held = whole_model(plan)
    fill(held, plan, torch.device("cpu"))
    reference = AveragedModel(held.model, multi_avg_fn=warm_up)
    reference.update_parameters(held.model)
    found = checkpoints(done.run_dir)
    assert list(found) == list(range(1, 8))
    for saved in found.values():
        with torch.no_grad():
            for name, item in held.model.named_parameters():
                item.copy_(saved.tensors[f"model/{name}"])
        reference.update_parameters(held.model)
        assert_same_tensors(averages(saved.tensors), dict(reference.module.named_parameters()))


@pytest.mark.parametrize("way", ["single", *(pytest.param(way, marks=pytest.mark.long) for way in ("fsdp 2", "ddp 2"))])
def test_evaluating_it_changes_nothing_of_the_training(tmp_path: Path, way: str) -> None:
    write_data(tmp_path)
    often = {"evaluation": {"every": "2 steps"}}
    plain = go(tmp_path, AVERAGED, WAYS[way], SHORT, often)
    of_average = go(tmp_path, AVERAGED, WAYS[way], SHORT, often, {"evaluation": {"weights": "ema"}})
    last = max(checkpoints(plain.run_dir))
    assert_same_tensors(checkpoints(plain.run_dir)[last].tensors, checkpoints(of_average.run_dir)[last].tensors)
    values = [[each.values["validation/loss"] for each in done.of(EvaluationDone)] for done in (plain, of_average)]
    assert all(one != other for one, other in zip(*values, strict=True))
    # the last evaluation is that of the averaged weights of the last step
    trained = open_trained(of_average.run_dir)
    assert trained.weights == "ema"
    saved = averages(checkpoints(of_average.run_dir)[trained.step].tensors)
    module = trained.module()
    for name, item in module.named_parameters():
        assert torch.equal(item, saved[name])
    given = open_trained(of_average.run_dir, weights="trained").module()
    assert not torch.equal(given.get_parameter("logits.weight"), module.get_parameter("logits.weight"))


def test_shards_that_a_forward_has_gathered_are_not_those_that_are_evaluated(tmp_path: Path) -> None:
    write_data(tmp_path)
    short = {
        "training": {"epochs": None, "steps": 4},
        "checkpoint": None,
        "evaluation": {"every": "2 steps", "weights": "ema"},
    }
    alone, sharded = (go(tmp_path, AVERAGED, short, WAYS[way]).of(EvaluationDone) for way in ("single", "fsdp 2"))
    losses = [[each.values["validation/loss"] for each in done] for done in (alone, sharded)]
    assert len(losses[0]) == 2
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)


@pytest.mark.parametrize(
    ("before", "after"),
    [("single", "single"), *(pytest.param(*pair, marks=pytest.mark.long) for pair in (("fsdp 2", "pipeline 2"),))],
)
def test_a_run_goes_on(tmp_path: Path, before: str, after: str) -> None:
    write_data(tmp_path)
    sparse = {"checkpoint": {"every": "1 epoch"}}
    straight = go(tmp_path, AVERAGED, WAYS[after], sparse)
    first = go(tmp_path, AVERAGED, WAYS[before], sparse, max_steps=STOP)
    shutil.move(first.run_dir, tmp_path / "first")
    assert go(tmp_path, AVERAGED, WAYS[after], sparse, resume=str(tmp_path / "first")).code == 0
    found, wanted = (checkpoints(run_dir)[STEPS].tensors for run_dir in (tmp_path / "first", straight.run_dir))
    assert averages(wanted)
    tolerance = {} if before == after else {"rtol": 1e-10, "atol": 1e-10}
    assert_same_tensors(found, wanted, **tolerance)


def test_what_has_none_has_none_to_give(tmp_path: Path) -> None:
    write_data(tmp_path)
    done = go(tmp_path, DEEP, max_steps=1)
    with pytest.raises(UsageError, match="has no moving average"):
        open_trained(done.run_dir, weights="ema")


def test_it_is_in_the_memory_of_a_plan(tmp_path: Path) -> None:
    from declarative_train import recipe as recipe_room
    from declarative_train.app.api.tracer import LateTracer
    from declarative_train.planner.compiler import compile as compile_plan
    from tests.engine.made_recipes import write_recipe

    write_data(tmp_path)
    rows = []
    for recipe in (DEEP, merged(DEEP, {"training": {"ema": {"decay": 0.9}}})):
        loaded = recipe_room.load(str(write_recipe(tmp_path, recipe)))
        assert loaded.recipe is not None
        plan, _ = compile_plan(loaded.recipe, tracer=LateTracer(), traces_all=True)
        assert plan is not None
        rows.append(plan.memory[0].optimizer)
    elements = sum(item.num_elements for item in compiled(tmp_path, DEEP).parameters)
    assert rows[1] - rows[0] == 4 * elements
