"""Optimizers, schedules, losses and metrics of a plugin train a recipe, alike in every mode, and go on after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.app.main import main
from declarative_train.components.component import MetricInputs
from declarative_train.components.metrics.modules.plugin import OfAllRows
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.collectives import Ranks
from tests.engine.on_ranks import forked
from tests.started import finish, start

RECIPE = """
plugins: [plugged.py]
data:
  source: {type: synthetic, kind: classification, rows: 100, features: 8, classes: 4}
  fields: {x: {column: x}, label: {column: "y"}}
  split: {validation: 0.2}
model:
  graph:
    hidden: {type: linear, out_features: 16, input: x}
    act: {type: relu}
    logits: {type: linear, out_features: 4}
  parameters: {bias: {optimizer: {type: sgd, lr: 0.1}}}
objective:
  losses:
    right: {type: margin, input: logits, target: label, margin: 0.5}
    small: {type: size, input: logits, weight: 0.01}
  metrics: {accuracy: {of: right}, sure: {of: right}, spread: {of: right}}
training:
  steps: 8
  global_batch_size: 24
  optimizer: {type: sign_momentum, lr: 0.05}
  lr_schedule: {type: halving, warmup: 2 steps}
  precision: fp64
evaluation: {every: 4 steps}
checkpoint: {every: 4 steps, keep: 3}
logging: {every: 1 step, sinks: {csv: {}}}
layout: {device: cpu}
"""


def run(folder: Path, *words: str) -> tuple[list[dict[str, Any]], Path]:
    """The values of every step and evaluation, and the run's folder."""
    (folder / "plugged.py").write_text(Path(__file__).with_name("plugged.py").read_text())
    (folder / "r.yaml").write_text(RECIPE)
    code, out, errors = finish(start("declarative_train", "run", "r.yaml", "--quiet", *words, cwd=folder), 110)
    assert code == 0, out + errors
    (events,) = folder.glob("runs/r/*/events.jsonl")
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return [each for each in found if each["event"] in ("StepDone", "EvaluationDone")], events.parent


def numbers(events: list[dict[str, Any]]) -> list[float]:
    return [
        value
        for each in events
        for value in ([each["loss"], *each["lr"].values()] if "loss" in each else each["values"].values())
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("alone"))[0]


def test_each_kind_is_at_work(alone: list[dict[str, Any]]) -> None:
    steps = [each for each in alone if each["event"] == "StepDone"]
    last = [each for each in alone if each["event"] == "EvaluationDone"][-1]["values"]
    assert len(steps) == 8
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert [each["lr"]["sign_momentum"] for each in steps] == pytest.approx(
        [0.05 * factor for factor in (1 / 3, 2 / 3, 1, 1, 0.5, 0.25, 0.25, 0.125)]
    )
    assert 0.25 <= last["validation/sure"] <= 1
    assert last["validation/spread"] >= 0
    assert last["validation/loss/small"] > 0


def farthest(rank: int, dtype: torch.dtype) -> torch.Tensor:
    spec = TensorSpec((2,), "float32")
    metric = OfAllRows(lambda one, other: (one - other).abs().max(), MetricInputs(spec, spec), torch.device("cpu"))
    if rank == 1:
        metric.update(torch.tensor([[0.1, 0.5], [0, 0]], dtype=dtype), torch.zeros(2, 2, dtype=dtype), None, None)
    return metric.compute(Ranks())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_rank_without_rows_takes_the_dtype_of_the_others(dtype: torch.dtype) -> None:
    """As the first stage of a pipeline in fp64: it does not see what the last one computes in."""

    assert [float(each) for each in forked(2, farthest, dtype)] == [0.5, 0.5]


def test_a_run_that_goes_on_is_the_one_that_never_stopped(tmp_path: Path, alone: list[dict[str, Any]]) -> None:
    first, folder = run(tmp_path, "--max-steps", "4")
    assert numbers(first) == numbers(alone)[: len(numbers(first))]
    whole, same = run(tmp_path, "--resume")
    assert same == folder
    assert numbers(whole)[-len(numbers(alone)) // 2 :] == numbers(alone)[-len(numbers(alone)) // 2 :]


def test_what_is_trained_is_evaluated_with_its_code_where_that_may_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = run(tmp_path, "--max-steps", "1")
    assert main(["evaluate", str(folder)]) == 2
    assert "has the loss `margin` of a plugin\nhelp: --plugins" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--plugins"]) == 0
    assert "spread" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_modes_agree_and_a_sharded_state_goes_on(mode: str, tmp_path: Path, alone: list[dict[str, Any]]) -> None:
    words = ["--set", f"parallelism={mode}", "--set", "layout.gpus=2"]
    run(tmp_path, *words, "--max-steps", "4")
    whole, _ = run(tmp_path, *words, "--resume")
    assert numbers(whole)[-20:] == pytest.approx(numbers(alone)[-20:], rel=1e-10)
