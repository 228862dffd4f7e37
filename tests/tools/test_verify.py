"""`dtrain verify`: it finds planted mistakes of the modes, and nothing where there is none."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from declarative_train import recipe as recipe_room
from declarative_train.app.main import main
from declarative_train.core.cuts import ParameterCut
from declarative_train.plan.layout import SharedParameter
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.tools.verify.plan_checks import check_plan
from declarative_train.tools.verify.text import format_verified
from declarative_train.tools.verify.verify import verify
from tests import shown_outputs
from tests.engine.made_recipes import DEEP, merged, write_data
from tests.generated_recipes import generated
from tests.parity.cells import Cell, cells
from tests.parity.measure import plan_of
from tests.record import ROOT
from tests.tools.mode_bugs import BUGS

QUICK = (
    "gradients are not reduced",
    "copies on stages are not summed",
    "shards decay",
    "outputs are not summed",
    "running statistics are not summed",
)
NAMED = ("start value", "output", "gradient", "update", "statistic")  # kinds that name a node or a parameter
NORM = (
    "copies on stages count twice in the norm",
    "whole parameters count twice in the norm",
    "a rank clips by its own part",
)
MODES = (  # in addition to those of the generated recipes
    ("parallelism: {tensor: 2}", "layout: {gpus: 2}"),
    ("parallelism: {tensor: {size: 2, sequence: true}, data: {replicate: 2}}", "layout: {gpus: 4}"),
    ("parallelism: {pipeline: {stages: 2, microbatches: 2}, data: {shard: 2}}", "layout: {gpus: 4}"),
)


@cache
def cell_named(name: str) -> Cell:
    (found,) = [cell for cell in cells() if cell.name == name]
    return found


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.long) for each in BUGS])
def test_a_planted_bug_is_found_and_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    plan = plan_of(cell_named(bug.cell), tmp_path)
    bug.plant(monkeypatch)
    found = verify(plan)
    text = format_verified(found)
    assert not found.is_equal, text
    assert f"first difference: {bug.found}" in text, text
    if name == QUICK[0]:
        page = (ROOT / "docs" / "verify.md").read_text("utf-8")
        assert all(line in text for line in page.partition("```text\n")[2].partition("```")[0].splitlines())
    named = [each for each in found.comparison.findings if each.kind in NAMED]
    assert named or name in NORM, text


def test_enough_bugs_name_a_node_or_a_parameter() -> None:
    assert len(BUGS) - len(NORM) >= 40


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "single, accumulation 2, masked, plain",
        "dp, 2 devices, accumulation 2, masked, plain",
        "ddp, 4 ranks, accumulation 1, uneven, mixes, over 16",
        "fsdp, 2 ranks, accumulation 2, uneven, averaged, over 16",
        "fsdp, hybrid 2 x 2 ranks, accumulation 2, masked, dora",
        "pipeline 1f1b x ddp, 2 x 2 ranks, accumulation 2, masked, plain, checkpointing all",
        "pipeline zbv, 2 ranks, accumulation 2, masked, shared, clipped",
        "sequence tensor x fsdp, 2 x 2 ranks, accumulation 2, masked, divided",
        "context x fsdp, 2 x 2 ranks, accumulation 2, masked, packed",
        "expert x fsdp, 2 x 2 ranks, accumulation 2, masked, moe",
        "context x expert, 2 x 2 ranks, accumulation 2, masked, mixtral",
        "ddp, 2 ranks, accumulation 2, masked, optimizers",
        "fsdp, 2 ranks, accumulation 2, masked, packed",
    ],
)
def test_nothing_is_found_in_a_right_mode(name: str, tmp_path: Path) -> None:
    plan = plan_of(cell_named(name), tmp_path)
    for step in (1, 2) if plan.training.num_steps > 1 else (1,):
        found = verify(plan, step=step)
        assert found.is_equal, format_verified(found)
        assert {row.kind for row in found.comparison.rows} >= {"loss", "gradient", "update"}


def make_plans(numbers: range, folder: Path) -> Iterator[tuple[int, Plan]]:
    shutil.copytree(ROOT / "recipes" / "data", folder / "data", dirs_exist_ok=True)
    for number in numbers:
        text = generated(number)
        if number % 3 == 0:
            mode, layout = MODES[number // 3 % len(MODES)]
            text = re.sub(r"parallelism: .*", mode, re.sub(r"layout: .*", layout, text))
        path = folder / f"{number}.yaml"
        path.write_text(re.sub(r"layout: \{(.*?)\}", r"layout: {\1, device: cpu}", text))
        loaded = recipe_room.load(str(path))
        plan = None if loaded.recipe is None else compile_plan(loaded.recipe)[0]
        if plan is not None:
            yield number, plan


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["digits_vae", "digits_resnet", "digits_vit_tuned", "gpt_nano_lora", "gpt_nano_tensor2"]
)
def test_nothing_is_found_in_a_shipped_recipe(name: str) -> None:
    """Dropout and expressions that draw are off; a batch norm is over samples; layers are adapted."""
    loaded = recipe_room.load(str(ROOT / "recipes" / f"{name}.yaml"))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is not None, diagnostics
    found = verify(plan, device="cpu")
    assert found.is_equal, format_verified(found)
    assert ("random numbers are off" in " ".join(found.notes)) == bool(plan.draws)


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("part", range(3))
def test_no_false_alarm_on_random_graphs_and_modes(part: int, tmp_path: Path) -> None:
    count = 0
    for number, plan in make_plans(range(part * 40, part * 40 + 40), tmp_path):
        found = verify(plan, step=1 + number % 5, in_float64=number % 2 == 0, device="cpu")
        assert found.is_equal, f"{number}\n{format_verified(found)}"
        assert not check_plan(plan).problems, number
        count += 1
    assert count >= 30


def test_plans_add_up(tmp_path: Path) -> None:
    by_way = {cell.way: cell for cell in cells() if cell.model == "shared"}
    for cell in by_way.values():
        assert check_plan(plan_of(cell, tmp_path)).problems == (), cell.name


@pytest.mark.long
@pytest.mark.timeout(500)
def test_all_plans_add_up(tmp_path: Path) -> None:
    for cell in {(cell.way, cell.model): cell for cell in cells()}.values():
        assert check_plan(plan_of(cell, tmp_path)).problems == (), cell.name


def in_layout(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, layout=replace(plan.layout, **changes))


def in_cuts(plan: Plan, **changes: Any) -> Plan:
    assert plan.layout.cuts is not None
    return in_layout(plan, cuts=replace(plan.layout.cuts, **changes))


def in_pipeline(plan: Plan, **changes: Any) -> Plan:
    assert plan.layout.pipeline is not None
    return in_layout(plan, pipeline=replace(plan.layout.pipeline, **changes))


def test_a_plan_that_does_not_add_up_is_found(tmp_path: Path) -> None:
    divided = plan_of(cell_named("tensor x ddp, 2 x 2 ranks, accumulation 2, masked, divided"), tmp_path)
    staged = plan_of(cell_named("pipeline 1f1b, 2 ranks, accumulation 2, masked, shared, clipped"), tmp_path)
    assert divided.layout.cuts is not None
    assert staged.layout.pipeline is not None
    cuts, stages = divided.layout.cuts, staged.layout.pipeline
    wrong = {
        "computes a part of its gradient, which is not summed": in_cuts(divided, summed=cuts.summed[1:]),
        "which is summed 2 times": in_cuts(divided, summed=(*cuts.summed, "norm.weight")),
        "cannot be divided into equal parts": in_cuts(
            divided, parameters=cuts.parameters | {"embed.weight": ParameterCut(0, (49,))}
        ),
        "which is divided in another way": in_cuts(
            divided, parameters={name: cut for name, cut in cuts.parameters.items() if name != "embed.weight"}
        ),
        "rows of a global batch": replace(divided, batch=replace(divided.batch, microbatch_size=4)),
        "the scale of the loss does not cancel the mean": replace(
            divided, batch=replace(divided.batch, data_parallel_size=4, microbatch_size=4)
        ),
        "the mesh has 4 places, the plan 8 ranks": in_layout(divided, num_nodes=2),
        "stage 1 is on 0 places": in_pipeline(staged, rank_stages=((0,), ())),
        "is summed over none": in_pipeline(staged, shared=stages.shared[1:]),
        "is used by the stages": in_pipeline(staged, shared=(*stages.shared, SharedParameter("c.weight", (0, 1)))),
        "is in no stage": in_pipeline(staged, stages=(stages.stages[0], stages.stages[1][1:])),
        "is in 2 stages": in_pipeline(staged, stages=(stages.stages[0], (stages.stages[0][0], *stages.stages[1]))),
        "in stage 0 0 times": in_pipeline(staged, grid=(stages.grid[0][1:], stages.grid[1])),
        "microbatches, but a step has": in_pipeline(staged, num_microbatches=3),
    }
    for words, plan in wrong.items():
        problems = check_plan(plan).problems
        assert any(words in problem for problem in problems), (words, problems)


def write_recipe(folder: Path, **changes: Any) -> Path:
    import yaml

    write_data(folder, 60)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged(DEEP, changes), sort_keys=False))
    return path


@pytest.mark.long
def test_the_page_has_the_outputs_of_its_commands() -> None:
    assert shown_outputs.main(["--check", "verify.md"]) == 0, "run `python -m tests.shown_outputs`"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(write_recipe(tmp_path))
    assert main(["verify", path, "--dtype", "float64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["mode"], found["ranks"], found["precision"]) == (True, "single", 1, "fp64")
    assert main(["verify", path, "--plan", "--set", "parallelism=ddp", "--set", "layout.gpus=2"]) == 0
    assert "mean over `replicate` (all-reduce)" in capsys.readouterr().out
    assert main(["verify", path, "--step", "1000"]) == 2
    assert "there is no step 1000" in capsys.readouterr().err
    assert main(["verify", "missing.yaml"]) == 2
    assert main(["verify", path, "--plan", "--against", "made"]) == 2


@pytest.mark.long
def test_against_an_earlier_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(write_recipe(tmp_path))
    assert main(["run", path, "--quiet", "--max-steps", "2"]) == 0
    assert main(["verify", path, "--against", "made"]) == 0
    assert "parameter" in capsys.readouterr().out
    assert main(["verify", path, "--against", "made", "--set", "training.optimizer.lr=0.02", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["notes"] == ["settings differ: training.optimizer.lr"]
    assert found["differences"][0]["kind"] == "loss"


def test_16384_ranks_are_checked_by_kind(tmp_path: Path) -> None:
    """Check each kind of rank once; the ranks are only counted."""
    mesh = {"data": {"replicate": 64, "shard": 64}, "pipeline": {"stages": 4, "microbatches": 4}}
    changes = {
        "parallelism": mesh,
        "layout": {"nodes": 2048, "gpus_per_node": 8},
        "training": {"global_batch_size": 16384, "gradient_accumulation_steps": None},
        "data": {"source": {"type": "synthetic", "kind": "classification", "features": 20, "rows": 65536}},
    }
    path = write_recipe(tmp_path, **changes)
    loaded = recipe_room.load(str(path))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is not None, diagnostics
    found = check_plan(plan)
    assert (len(plan.layout.ranks), found.num_classes, found.problems) == (16384, 256, ())
