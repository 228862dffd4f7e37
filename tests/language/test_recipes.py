"""Recipes that the language must say: each lints and plans, and the small ones learn from made data."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.plan import Plan
from tests import started
from tests.language.made import make

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.yaml"))
FEW_CORES = "P014"  # a warning of this machine, not of the recipe: 8 ranks with 8 loaders
DRAWS = "R108"  # what lint says of a recipe that draws random numbers over ranks
UNTIED = ('model.parameters."logits.weight"=null',)
SMALL_GPT = ("model.graph.gpt.layers=2", "model.graph.gpt.width=32", "model.graph.gpt.heads=2")
SMALL_GPT += ("data.window={length: 65, stride: 64}", "training.steps=30", "training.lr_schedule.warmup=3 steps")
SMALL_GPT += ("training.global_batch_size=16", "training.microbatch_size=8", "training.optimizer.lr=1e-2")
SMALL_GPT += ("layout={gpus: 2}", "evaluation={every: 30 steps}", "checkpoint.every=30 steps")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipes, each with its data where it looks for them."""
    folder = tmp_path_factory.mktemp("language")
    for name in NAMES:
        shutil.copy(HERE / f"{name}.yaml", folder)
    make(folder)
    return folder


def compiled(path: Path, set_: Sequence[str] = ()) -> tuple[Plan | None, list[Diagnostic]]:
    loaded = recipe_room.load(str(path), set_=set_)
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    return plan, [*loaded.diagnostics, *diagnostics]


def trained(folder: Path, name: str, *set_: str) -> list[dict[str, Any]]:
    """The values at the end of each epoch of a real run, and of the logging steps."""
    words = [word for each in set_ for word in ("--set", each)]
    return started.run(folder / f"{name}.yaml", folder / "runs" / name, *words)


def losses(events: list[dict[str, Any]]) -> list[float]:
    return [event["loss"] for event in events if event["event"] == "StepDone"]


def falls(events: list[dict[str, Any]], to: float) -> bool:
    """From the first fifth of the steps to the last one, to this share of it or less."""
    found = losses(events)
    fifth = len(found) // 5
    return sum(found[-fifth:]) <= to * sum(found[:fifth])


def last(events: list[dict[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for event in events:
        if event["event"] == "EvaluationDone":
            found |= event["values"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_lints_and_plans(name: str, folder: Path) -> None:
    plan, diagnostics = compiled(folder / f"{name}.yaml", UNTIED if name == "03_llama" else ())
    assert [each for each in diagnostics if each.code not in (FEW_CORES, DRAWS)] == []
    assert plan is not None


def test_the_sizes_are_those_that_are_known(folder: Path) -> None:
    sizes = {}
    for name in ("01_resnet", "02_gpt", "03_llama"):
        plan, _ = compiled(folder / f"{name}.yaml", UNTIED if name == "03_llama" else ())
        assert plan is not None
        sizes[name] = sum(each.num_elements for each in plan.parameters if each.tie is None) / 1e6
    assert sizes["01_resnet"] == pytest.approx(23.6, abs=0.1)  # ResNet-50 with 37 classes
    assert sizes["02_gpt"] == pytest.approx(86, abs=1.5)  # GPT-2 small with 256 tokens and 1,024 places
    assert sizes["03_llama"] == pytest.approx(1236 + 263, abs=5)  # llama 3.2 1B, not tied


def test_the_ends_of_a_tied_llama_hold_copies(folder: Path) -> None:
    plan, _ = compiled(folder / "03_llama.yaml")
    assert plan is not None
    assert plan.layout.pipeline is not None
    last = plan.layout.pipeline.num_stages - 1
    assert [(each.name, each.stages) for each in plan.layout.pipeline.shared] == [("embed.weight", (0, last))]
    assert sum(each.num_elements for each in plan.parameters if each.tie is None) / 1e6 == pytest.approx(1236, abs=5)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_resnet_on_pictures_runs(folder: Path) -> None:
    small = ("vars={}", "data.workers=2", "layout={gpus: 2}", "training.epochs=null", "training.steps=1")
    small += ("training.global_batch_size=32", "training.lr_schedule.warmup=null", "evaluation.max=32 samples")
    events = trained(folder, "01_resnet", *small)
    (loss,) = losses(events)
    assert 3 < loss < 5  # ln 37 is 3.6


def test_the_vae_learns(folder: Path) -> None:
    events = trained(folder, "07_vae", "training.epochs=15")
    assert falls(events, to=0.6)
    terms = [event["terms"] for event in events if event["event"] == "StepDone"]
    assert terms[0].keys() == {"reconstruction", "kl"}
    for event in (event for event in events if event["event"] == "StepDone"):
        assert event["loss"] == pytest.approx(event["terms"]["reconstruction"] + 0.5 * event["terms"]["kl"], rel=1e-5)
    assert {"validation/loss", "validation/loss/reconstruction", "validation/loss/kl"} <= last(events).keys()


def test_the_lstm_learns(folder: Path) -> None:
    events = trained(
        folder, "08_lstm", "training.epochs=12", "model.graph.lstm.hidden_size=32", "training.optimizer.lr=1e-2"
    )
    assert falls(events, to=0.6)
    assert {"validation/rmse", "validation/mape", "test/loss"} <= last(events).keys()


@pytest.mark.long
def test_a_small_gpt_learns(folder: Path) -> None:
    events = trained(folder, "02_gpt", *SMALL_GPT)
    assert losses(events)[0] == pytest.approx(5.5, abs=0.3)  # ln 256
    assert falls(events, to=0.6)
    assert last(events)["validation/perplexity"] < 40


@pytest.mark.long
def test_frauds_are_found(folder: Path) -> None:
    events = trained(folder, "11_imbalanced", "training.epochs=15", "training.global_batch_size=128")
    assert falls(events, to=0.8)
    assert last(events)["validation/auroc"] > 0.85
    assert last(events)["test/auroc"] > 0.85
