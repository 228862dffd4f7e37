"""Sources of a plugin train a recipe: alike with loaders and in every mode, and a run that goes on is the same one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.app.main import main
from declarative_train.components.plugins import plugin_layers
from declarative_train.data import prepared_set
from declarative_train.data.shared_sets import _latest

pytestmark = pytest.mark.packs

ROOT = Path(__file__).parents[2]
MODEL = """
model:
  graph:
    hidden: {type: linear, out_features: 16, input: x}
    act: {type: relu}
    logits: {type: linear, out_features: 3}
objective: {loss: {type: cross_entropy, input: logits, target: ring}, metrics: {accuracy: {}}}
training: {steps: 8, global_batch_size: 24, optimizer: {type: adam, lr: 1e-2}, precision: fp64}
evaluation: {every: 4 steps}
checkpoint: {every: 4 steps, keep: 3}
logging: {every: 1 step}
layout: {device: cpu}
"""
RINGS = f"""
plugins: [plugged_data.py]
data:
  source: {{type: rings, rows: 120}}
  fields: {{x: {{column: x, normalize: standard}}, ring: {{type: category, column: ring}}}}
  split: {{validation: 0.2, other: {{source: {{type: waves}}}}}}
{MODEL}
"""
STRIPES = """
plugins: [plugged_data.py]
data:
  source: {type: stripes, rows: 60}
  fields: {picture: {type: image, column: picture, size: 8}, way: {column: way}}
  transforms: [{type: random_flip, p: 0.5}, {type: random_crop, size: 8, padding: 1}]
  split: {validation: 0.2}
model:
  graph:
    flat: {type: flatten, input: picture}
    logits: {type: linear, out_features: 2}
objective: {loss: {type: cross_entropy, input: logits, target: way}, metrics: {accuracy: {}}}
training: {steps: 8, global_batch_size: 12, optimizer: {type: adam, lr: 1e-2}, precision: fp64}
evaluation: {every: 4 steps}
checkpoint: {every: 4 steps, keep: 3}
logging: {every: 1 step}
layout: {device: cpu}
"""

POLAR = (
    RINGS.replace("x: {column: x, normalize: standard}", "x: {type: polar, column: x, copies: 2}")
    .replace("hidden:", "flat: {type: flatten, input: x}\n    hidden:")
    .replace("out_features: 16, input: x", "out_features: 16")
)
CHANGED = STRIPES.replace(
    "[{type: random_flip, p: 0.5}, {type: random_crop, size: 8, padding: 1}]",
    "[{type: random_flip}, {type: grid, side: 6}, {type: normalize, mean: [0.5], std: [0.5]}, {type: noise}]",
).replace(", size: 8}", "}")
TILTED = CHANGED.replace("{type: random_flip},", "{type: tilt},").replace("  split:", "  workers: 1\n  split:")
RECIPES = {"held": RINGS, "read": STRIPES, "field": POLAR, "changed": CHANGED, "tilted": TILTED}


def laid(folder: Path, recipe: str = RINGS) -> Path:
    (folder / "plugged_data.py").write_text(Path(__file__).with_name("plugged_data.py").read_text())
    (folder / "r.yaml").write_text(recipe)
    return folder / "r.yaml"


def dtrain(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "declarative_train", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, env=environment)


def run(folder: Path, recipe: str, *words: str, ranks: int = 1) -> tuple[list[float], Path]:
    """Losses and metrics in the order of events, and the run's folder."""
    path = laid(folder, recipe)
    if ranks == 1:
        with chdir(folder):
            assert main(["run", str(path), "--quiet", *words]) == 0
    else:
        done = dtrain(folder, "run", "r.yaml", "--quiet", "--set", f"layout.gpus={ranks}", *words)
        assert done.returncode == 0, done.stdout + done.stderr
    (events,) = folder.glob("runs/r/*/events.jsonl")
    found: list[dict[str, Any]] = [json.loads(line) for line in events.read_text().splitlines()]
    values = [
        value
        for each in found
        if each["event"] in ("StepDone", "EvaluationDone")
        for value in ([each["loss"]] if "loss" in each else each["values"].values())
    ]
    return values, events.parent


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[list[float], Path]]:
    return {recipe: run(tmp_path_factory.mktemp("alone"), recipe) for recipe in RECIPES.values()}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_a_run_that_goes_on_is_the_one_that_never_stopped(
    recipe: str, tmp_path: Path, alone: dict[str, tuple[list[float], Path]]
) -> None:
    """Also where loader processes make the samples of its second half."""
    whole, _ = alone[recipe]
    assert min(whole[:4]) < whole[0] + 1
    first, _ = run(tmp_path, recipe, "--max-steps", "4")
    assert first == whole[: len(first)]
    second, _ = run(tmp_path, recipe, "--resume", "--set", "data.workers=2")
    assert second[-len(whole) // 2 :] == whole[-len(whole) // 2 :]


def test_lint_knows_the_columns_without_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = laid(tmp_path, RINGS.replace("column: x,", "column: xs,"))
    plugin = tmp_path / "plugged_data.py"
    plugin.write_text("raise RuntimeError('it ran')\n" + plugin.read_text())
    assert main(["lint", str(recipe)]) == 1
    said = capsys.readouterr().out
    assert "error[D005]: the source has no column `xs`" in said
    assert "needs verification[D051]: the source `rings` belongs to a plugin, whose code was not run" in said
    assert "needs verification[D051]: the source `waves`" in said
    assert main(["lint", str(laid(tmp_path)), "--plugins"]) == 0
    assert "nothing wrong" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [0, 1])
def test_a_row_that_fails_stops_the_run_with_its_line(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The label of row 42 is read with the pictures, since no other column has it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prepared_set, "DECODED_BYTES", 0)  # as a large set, which is not decoded before the run
    torn = STRIPES.replace("rows: 60}", "rows: 60, torn: 41}")
    late = torn.replace(", way: {column: way}", "").replace(
        "{type: cross_entropy, input: logits, target: way}, metrics: {accuracy: {}}", "{type: mean, input: logits}"
    )
    assert main(["run", str(laid(tmp_path, torn)), "--quiet"]) == 1
    said = "`__getitem__` fails for row 42 (index 41) of `stripes`: OSError: no such stripe; plugged_data.py, line "
    printed = capsys.readouterr()
    assert f"error[D050]: {said}" in printed.out + printed.err
    assert main(["run", str(laid(tmp_path, late)), "--quiet", "--set", f"data.workers={workers}"]) == 3
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err


def test_what_is_trained_is_evaluated_where_its_source_may_run(
    alone: dict[str, tuple[list[float], Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = alone[RINGS]
    assert main(["evaluate", str(folder)]) == 2
    assert "the rows of validation come from the source `rings` of a plugin\nhelp: --plugins runs" in (
        capsys.readouterr().err
    )
    assert main(["evaluate", str(folder), "--plugins"]) == 0
    assert "validation/accuracy" in capsys.readouterr().out
    (tmp_path / "new.csv").write_text("x\n1\n")
    plugin = folder.parents[2] / "plugged_data.py"
    text = plugin.read_text()
    try:
        plugin.unlink()
        _latest.clear()  # as in a process that starts
        assert main(["evaluate", str(folder), "--plugins"]) == 3
        said = capsys.readouterr().err
        assert f"the source `rings` is of the plugin {plugin}: No such file or directory" in said
    finally:
        plugin.write_text(text)


def test_new_rows_need_no_source(
    alone: dict[str, tuple[list[float], Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = alone[RINGS]
    np.savez(tmp_path / "new.npz", x=np.ones((3, 2), np.float32))
    assert main(["predict", str(folder), str(tmp_path / "new.npz"), "-o", str(tmp_path / "made.csv")]) == 0
    assert len((tmp_path / "made.csv").read_text().splitlines()) == 4
    assert "plugin" not in capsys.readouterr().err


def test_data_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = laid(tmp_path, STRIPES)
    assert main(["data", "show", str(recipe)]) == 1
    assert "D051" in capsys.readouterr().err
    sheet = tmp_path / "sheet.png"
    assert main(["data", "show", str(recipe), "--plugins", "--pictures", str(sheet)]) == 0
    said = capsys.readouterr().out
    assert "files or pictures" in said
    assert "0 to 1" in said
    assert sheet.stat().st_size > 1000


def test_what_makes_samples_is_needed_for_new_rows(
    alone: dict[str, tuple[list[float], Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = alone[POLAR]
    np.savez(tmp_path / "new.npz", x=np.ones((3, 2), np.float32))
    words = ["predict", str(folder), str(tmp_path / "new.npz"), "-o", str(tmp_path / "made.csv")]
    assert main(words) == 2
    assert "has the field `polar` of a plugin\nhelp: --plugins runs the code of " in capsys.readouterr().err
    assert main([*words, "--plugins"]) == 0
    assert len((tmp_path / "made.csv").read_text().splitlines()) == 4
    assert main(["evaluate", str(alone[CHANGED][1])]) == 2
    assert "has the transform `grid` of a plugin" in capsys.readouterr().err
    assert main(["evaluate", str(alone[CHANGED][1]), "--plugins"]) == 0
    plugin = folder.parents[2] / "plugged_data.py"
    text = plugin.read_text()
    try:
        plugin.unlink()
        plugin_layers.cache_clear()  # as in a process that starts
        assert main([*words, "--plugins"]) == 2
        assert f"the run's plugin {plugin} cannot be read: no such file" in capsys.readouterr().err
    finally:
        plugin.write_text(text)


def test_draws_of_other_generators_take_loader_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = laid(tmp_path, TILTED.replace("workers: 1", "workers: 0"))
    assert main(["lint", str(recipe), "--plugins"]) == 1
    said = capsys.readouterr().out
    assert "error[D042]: `tilt` draws from generators that the training process uses as well" in said
    assert "help: set `data.workers: 1` or more" in said


def test_fields_and_transforms_wait_for_their_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = laid(tmp_path, POLAR).with_name("plugged_data.py")
    plugin.write_text("raise RuntimeError('it ran')\n" + plugin.read_text())
    assert main(["lint", str(tmp_path / "r.yaml")]) == 0
    assert "needs verification[D051]: the field `polar` belongs to a plugin" in capsys.readouterr().out
    (tmp_path / "r.yaml").write_text(CHANGED)
    assert main(["lint", str(tmp_path / "r.yaml")]) == 0
    assert "needs verification[D051]: the transform `grid` belongs to a plugin" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("recipe", [RINGS, CHANGED], ids=["held", "changed"])
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_modes_agree(recipe: str, mode: str, tmp_path: Path, alone: dict[str, tuple[list[float], Path]]) -> None:
    words = ["--set", f"parallelism={mode}", "--set", "data.workers=1"]
    whole, _ = run(tmp_path, recipe, *words, ranks=2)
    assert whole == pytest.approx(alone[recipe][0], rel=1e-10)
