"""An Apple machine's GPU, pretended: nothing mixes devices, and nothing on it is float64. None was at hand to run on.

Losses, metrics and their sums are computed on the CPU next to it (`devices.exact_device`), in float64 as everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.engine import devices
from declarative_train.engine.devices import choose_device, device_of, exact_device
from declarative_train.engine.failures import RunFailure
from declarative_train.engine.step import step_runner
from declarative_train.run.rank import FailureContext, run_rank
from declarative_train.run.rank_job import RankJob
from declarative_train.run.storage.run_dir import RunPlace
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data
from tests.engine.plans import layout
from tests.engine.pretend_gpu import MPS, NoFloat64Error, PretendGpu
from tests.engine.runs import last_tensors
from tests.engine.test_devices import made
from tests.engine.test_pretend_gpu import SHORT, TERMS, all_functions, all_terms, of_all_layers, on_gpu

MASKED = {
    "model": {"graph": {"dropped": {"type": "dropout", "p": 0.2, "input": "logits"}}},
    "objective": {"loss": {"type": "cross_entropy", "input": "dropped", "target": "y", "ignore_index": 3}},
    "training": {"clip_grad_norm": 1.0, "ema": {"decay": 0.9}, "gradient_accumulation_steps": 2},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path, 100)
    return tmp_path


def run(directory: Path, recipe: Mapping[str, Any], *changes: Mapping[str, Any], name: str = "run") -> PretendGpu:
    for change in (SHORT, *changes):
        recipe = merged(recipe, change)
    return on_gpu(compiled(directory, recipe), directory / name, device=MPS)


def test_a_step_its_evaluation_and_its_checkpoints_are_those_of_the_cpu(directory: Path) -> None:
    exact = {"model": {"graph": {"dropped": {"type": "relu"}}}}  # draws are those of a device
    run(directory, DIGITS, MASKED, exact)
    plain = merged(merged(merged(DIGITS, SHORT), MASKED), exact)
    (directory / "cpu").mkdir()
    job = RankJob(compiled(directory, plain), "cpu", RunPlace(directory / "cpu", None), None, lambda _: ())
    assert run_rank(job, FailureContext(0), lambda: False) == 0
    mine, theirs = last_tensors(directory / "run"), last_tensors(directory / "cpu")
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name])


def test_what_draws_and_what_is_counted_by_values(directory: Path) -> None:
    run(directory, DIGITS, MASKED)


def test_every_layer(directory: Path) -> None:
    run(directory, of_all_layers(directory))


def test_every_function_of_an_expression(directory: Path) -> None:
    run(directory, DIGITS, all_functions())


def test_every_loss_and_metric(directory: Path) -> None:
    assert TERMS
    run(directory, DIGITS, all_terms())


def test_float64_there_is_seen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pretended device refuses what the real one does."""
    with PretendGpu(MPS):
        there = torch.ones(3, device="mps")
        assert (there.device.type, there.is_cpu, there.is_cuda) == ("mps", False, False)
        with pytest.raises(NoFloat64Error):
            there.double()
        with pytest.raises(NoFloat64Error):
            torch.zeros(2, dtype=torch.float64, device="mps")
    monkeypatch.setattr(step_runner, "exact_device", lambda device: device)
    with pytest.raises(NoFloat64Error):
        run(directory, DIGITS, MASKED)


def test_the_device_is_chosen_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = made("single", 1, device="mps")
    monkeypatch.setattr(devices, "has_mps", lambda: True)
    assert choose_device(wanted, 0).kind == "mps"
    assert device_of(wanted.ranks[0], "mps") == MPS
    assert exact_device(MPS) == torch.device("cpu")
    notice = "no GPU here: one process on CPU; --set layout.device=mps uses Apple's"
    assert choose_device(made("single", 1), 0).notice == notice
    assert choose_device(layout("ddp", 2), 0).kind == "cpu"
    monkeypatch.setattr(devices, "has_mps", lambda: False)
    with pytest.raises(RunFailure, match=r"torch finds no Apple GPU here .*--set layout.device=auto"):
        choose_device(wanted, 0)
