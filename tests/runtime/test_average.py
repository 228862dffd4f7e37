"""`training.ema`: what it is, where it is kept, and what is evaluated and used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

from declarative_train.inference.trained import UsageError, open_trained
from declarative_train.logs.event import EvaluationDone
from declarative_train.runtime.step.average import Average
from tests.runtime.made_recipes import DEEP, WAYS, compiled, merged, on_pipeline, write_data
from tests.runtime.runs import assert_same_tensors, checkpoints, go

AVERAGED: dict[str, Any] = merged(
    DEEP, {"training": {"ema": {"decay": 0.9}, "precision": "fp64"}, "checkpoint": {"every": "1 step", "keep": 100}}
)
STEPS, STOP = 21, 10
SHORT = {"training": {"epochs": 1}, "checkpoint": {"best": None}}


def averages(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.partition("/")[2]: item for name, item in tensors.items() if name.startswith("ema/")}


def test_an_update_is_torchs() -> None:
    model = torch.nn.Linear(3, 2)
    average = Average(dict(model.named_parameters()), 0.9, model)
    wanted = [item.detach().clone() for item in model.parameters()]
    for made in (None, torch.tensor(True), torch.tensor(False)):
        with torch.no_grad():
            for item in model.parameters():
                item.add_(1)
        average.update(made)
        if made is None or made:
            get_ema_multi_avg_fn(0.9)(wanted, [item.detach() for item in model.parameters()], 1)
    for found, other in zip(average.tensors.values(), wanted, strict=True):
        torch.testing.assert_close(found, other)


def test_a_stage_that_trains_nothing_has_none() -> None:
    average = Average({}, 0.9, torch.nn.Linear(3, 2))
    average.update(None)
    average.update(torch.tensor(True))
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
def test_it_follows_the_parameters_of_every_step(tmp_path: Path, way: str) -> None:
    write_data(tmp_path)
    done = go(tmp_path, AVERAGED, WAYS[way], SHORT)
    assert done.code == 0
    found = checkpoints(done.run_dir)
    before = averages(found[1].tensors)
    assert set(before) == {name.split("/")[1] for name in found[1].tensors if name.startswith("optimizer/")}
    for step in range(2, 8):
        now = averages(found[step].tensors)
        for name, item in now.items():
            wanted = 0.9 * before[name] + 0.1 * found[step].tensors[f"model/{name}"]
            torch.testing.assert_close(item, wanted, rtol=1e-12, atol=1e-14)
        before = now


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
    with pytest.raises(UsageError, match="kept no moving average"):
        open_trained(done.run_dir, weights="ema")


def test_it_is_in_the_memory_of_a_plan(tmp_path: Path) -> None:
    from declarative_train import recipe as recipe_room
    from declarative_train.api.tracer import LateTracer
    from declarative_train.plan.compiler import compile as compile_plan
    from tests.runtime.made_recipes import write_recipe

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
