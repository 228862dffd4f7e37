"""A model that starts from the weights of a run reads its columns as that run did: statistics, class numbers."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from declarative_train import planner
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.engine.checkpoints.store import read_entry
from declarative_train.engine.failures import CheckpointFailure
from declarative_train.plan.plan import Plan
from declarative_train.plan.run_fields import fields_of
from declarative_train.planner.text.describe import describe
from declarative_train.recipe import load
from declarative_train.run.event import EvaluationDone
from declarative_train.run.launch import run
from declarative_train.run.rank_job import default_sinks
from declarative_train.run.sinks.jsonl import read_events
from declarative_train.run.storage.run_dir import changes_since

NAMES = ("barolo", "grignolino", "barbera")
WINE = """
name: wine
data:
  source: {type: csv, path: wine.csv}
  fields:
    features: {columns: "*", exclude: kind, normalize: standard}
    kind: {type: category, column: kind}
  split: {validation: 0.2}
model:
  graph:
    hidden: {type: linear, out_features: 8, input: features}
    act: {type: relu}
    logits: {type: linear, out_features: 3}
objective:
  loss: {type: cross_entropy, input: logits, target: kind}
  metrics: [accuracy]
training: {epochs: 10, global_batch_size: 16, optimizer: {type: adam, lr: 0.03}}
parallelism: single
layout: {device: cpu}
"""


def wine(
    path: Path, header: str = "alcohol,acid,kind", shift: float = 0.0, only: tuple[str, ...] = NAMES, **renamed: str
) -> None:
    draws = random.Random(0)
    rows = []
    for row in range(120):
        kind, noise = row % 3, [draws.gauss(0, 0.3) for _ in range(2)]
        if NAMES[kind] not in only:
            continue
        name = renamed.get(NAMES[kind], NAMES[kind])
        rows.append(f"{13 + shift + 2 * (kind == 1) + noise[0]:.3f},{2 + 2 * (kind == 2) + noise[1]:.3f},{name}")
    path.write_text("\n".join([header, *rows]) + "\n")


class Trained(NamedTuple):
    folder: Path
    plan: Plan
    accuracy: float


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on wines, whose checkpoint alone is kept, as `copied`, away from the folder of its run."""
    folder = tmp_path_factory.mktemp("wine")
    wine(folder / "wine.csv")
    (folder / "base.yaml").write_text(WINE)
    plan, _ = compiled(folder, "")
    assert plan is not None
    assert run(plan, sinks=default_sinks(quiet=True)) == 0
    (checkpoint,) = folder.glob("runs/wine/*/checkpoints/step_*")
    shutil.copytree(checkpoint, folder / "copied")
    return Trained(folder, plan, accuracy(folder))


def compiled(folder: Path, text: str) -> tuple[Plan | None, list[Diagnostic]]:
    (folder / "recipe.yaml").write_text("extends: base.yaml\n" + text)
    loaded = load(str(folder / "recipe.yaml"), set_=(f"logging.dir={folder / 'runs'}",))
    assert loaded.recipe is not None, loaded.diagnostics
    return planner.compile(loaded.recipe)


def accuracy(folder: Path, name: str = "wine") -> float:
    (events,) = (folder / "runs" / name).glob("*/events.jsonl")
    return next(event for event in read_events(events) if isinstance(event, EvaluationDone)).values[
        "validation/accuracy"
    ]


FROZEN = "training: {epochs: null, steps: 1, optimizer: {lr: 1e-12}}\n"


def test_a_copied_checkpoint_brings_its_statistics_and_classes(trained: Trained) -> None:
    """Rows of other means were normalised anew, and the classes numbered anew: 0.972 became 0.306 without a word."""
    wine(trained.folder / "few.csv", only=("grignolino", "barbera"))
    wine(trained.folder / "shifted.csv", shift=3.0)
    text = "name: told\ndata: {source: {path: few.csv}}\nmodel: {weights: copied}\n" + FROZEN
    plan, diagnostics = compiled(trained.folder, text)
    assert plan is not None, diagnostics
    assert not diagnostics
    before = {field.name: field for field in trained.plan.data.fields}
    for field in plan.data.fields:
        assert field.statistics == before[field.name].statistics
    said = describe(plan)
    assert f"statistics of features from {plan.data.fields[0].statistics_from}" in said
    assert "copied step 60" in said
    assert "classes of kind: 0 barbera, 1 barolo, 2 grignolino" in said
    assert run(plan, sinks=default_sinks(quiet=True)) == 0
    assert accuracy(trained.folder, "told") == trained.accuracy == 1.0
    shifted, _ = compiled(trained.folder, "data: {source: {path: shifted.csv}}\nmodel: {weights: copied}\n")
    assert shifted is not None
    assert shifted.data.fields[0].statistics == before["features"].statistics
    anew = "data: {source: {path: shifted.csv}}\nmodel: {weights: {path: copied, statistics: data}}\n"
    plan, _ = compiled(trained.folder, anew)
    assert plan is not None
    assert plan.data.fields[0].statistics != before["features"].statistics
    assert plan.data.fields[0].statistics_from == ""


def test_a_label_that_the_run_does_not_know_is_an_error(trained: Trained) -> None:
    wine(trained.folder / "renamed.csv", barolo="nebbiolo")
    _, found = compiled(trained.folder, "data: {source: {path: renamed.csv}}\nmodel: {weights: copied}\n")
    (unknown,) = [item for item in found if item.is_error]
    assert unknown.code == "D030"
    assert "`kind` is `nebbiolo` in row 4 of " in unknown.message
    assert "copied step 60 has only `barbera`, `barolo`, `grignolino`" in unknown.message
    assert unknown.related[0].span.line == 3  # model.weights


@pytest.mark.parametrize(
    ("header", "fields", "words"),
    [
        ("alcohol,acid,kind", "features: {normalize: minmax}", "`normalize` is `minmax` here, but was `standard`"),
        ("acid,alcohol,kind", "", "`acid`, `alcohol` here, and were `alcohol`, `acid`: another order"),
        ("alcohol,iron,kind", "", "its columns are `alcohol`, `iron` here"),
        ("alcohol,acid,kind", "features: {exclude: [kind, acid]}", "it has 1 column here (`alcohol`), and had 2"),
        ("alcohol,acid,kind", "kind: {unknown: 0}", "`unknown` is `0` here, but was not set"),
    ],
)
def test_a_field_that_reads_otherwise_is_an_error(trained: Trained, header: str, fields: str, words: str) -> None:
    wine(trained.folder / "other.csv", header)
    data = f"data: {{source: {{path: other.csv}}, fields: {{{fields}}}}}\n"
    _, found = compiled(trained.folder, data + "model: {weights: copied}\n")
    (told, *_) = [item for item in found if item.code == "D031"]
    assert words in told.message
    _, found = compiled(trained.folder, data + "model: {weights: {path: copied, statistics: data}}\n")
    assert "D031" not in {item.code for item in found}


def test_a_column_that_was_renamed_by_hand_is_taken(trained: Trained) -> None:
    wine(trained.folder / "german.csv", "Alkohol,Saeure,Sorte")
    fields = "features: {columns: [Alkohol, Saeure], exclude: null}, kind: {column: Sorte}"
    data = f"data: {{source: {{path: german.csv}}, fields: {{{fields}}}}}\n"
    plan, found = compiled(trained.folder, data + "model: {weights: copied}\n")
    assert plan is not None, found
    assert plan.data.fields[0].statistics == trained.plan.data.fields[0].statistics


@pytest.mark.parametrize(
    ("node", "wanted"), [("hidden", ("features",)), ("logits", ("features", "kind")), ("act", ("features",))]
)
def test_weights_of_one_node_bring_what_it_reads_and_is_held_against(
    trained: Trained, node: str, wanted: tuple[str, ...]
) -> None:
    """A new head has classes of its own."""
    (trained.folder / "recipe.yaml").write_text(
        f"extends: base.yaml\nmodel: {{weights: {{{node}: {{path: copied}}}}}}\n"
    )
    recipe = load(str(trained.folder / "recipe.yaml")).recipe
    assert recipe is not None
    assert fields_of(recipe, recipe.model.weights[0]) == wanted


def test_a_checkpoint_holds_its_plan_and_the_text_of_its_recipe(trained: Trained) -> None:
    content = json.loads((trained.folder / "copied" / "plan.json").read_text())
    assert content["identity"] == trained.plan.identity
    assert content["recipe"][str(trained.folder / "base.yaml")] == WINE
    manifest = json.loads((trained.folder / "copied" / "manifest.json").read_text())
    assert manifest["files"]["plan.json"]["size_bytes"] == (trained.folder / "copied" / "plan.json").stat().st_size


def test_a_plan_that_was_changed_in_the_checkpoint_is_refused(trained: Trained) -> None:
    shutil.copytree(trained.folder / "copied", trained.folder / "damaged")
    path = trained.folder / "damaged" / "plan.json"
    path.write_bytes(path.read_bytes().replace(b'"barbera"', b'"barberb"'))
    _, found = compiled(trained.folder, "model: {weights: damaged}\n")
    assert [(item.code, "checksum of plan.json" in item.message) for item in found] == [("U106", True)]


def test_a_run_on_changed_data_does_not_go_on(trained: Trained) -> None:
    (checkpoint,) = trained.folder.glob("runs/wine/*/checkpoints/step_*")
    shutil.copy(trained.folder / "wine.csv", trained.folder / "kept.csv")
    wine(trained.folder / "wine.csv", shift=1.0)
    plan, _ = compiled(trained.folder, "")
    shutil.copy(trained.folder / "kept.csv", trained.folder / "wine.csv")
    assert plan is not None
    for path in (checkpoint, trained.folder / "copied"):
        with pytest.raises(CheckpointFailure, match="the contents of the data files changed"):
            changes_since(plan, read_entry(str(path)))
