"""Whole runs by the command's way: checkpoints, ranks, failures."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import pytest

from tests.engine.made_recipes import WAYS
from tests.gpu.device import NO_GPU, has_device, kind
from tests.gpu.run_cell import ran

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_device(), reason=NO_GPU)]

TORCH = tuple(int(part) for part in version("torch").split("+")[0].split(".")[:2])
NEEDS_2_13 = ("zero bubble 2",) if TORCH < (2, 13) else ()
RANKS = [name for name in WAYS if name not in ("single", "dp 2", *NEEDS_2_13)]


@pytest.mark.parametrize("way", RANKS)
def test_ranks_that_share_the_device(way: str) -> None:
    """Over gloo, in double precision: what NCCL does on several GPUs is for a machine that has them."""
    found = ran("ways", names=[way], precision_name="fp64")
    assert found[way] <= 1e-9


@pytest.mark.parametrize("way", ["ddp 2", "fsdp 2", "pipeline 2"])
def test_ranks_in_half_precision(way: str) -> None:
    assert ran("ways", names=[way], precision_name="bf16")[way] <= 5e-2


OF_RESUME: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("mlp", {}),
    "sgd": ("gpt", {"optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9}}),
    "adafactor": ("mlp", {"optimizer": {"type": "adafactor", "lr": 0.01}}),
    "lion": ("llama", {"optimizer": {"type": "lion", "lr": 0.001}}),
    "fp16": ("mlp", {"precision": "fp16"}),
    "bf16": ("llama", {"precision": "bf16"}),
    "images": ("images", {"optimizer": {"type": "adam", "lr": 0.01}}),
    "recurrent": ("recurrent", {"optimizer": {"type": "rmsprop", "lr": 0.01}}),
}


@pytest.mark.parametrize("name", list(OF_RESUME))
def test_a_resumed_run_is_the_one_that_was_never_stopped(name: str) -> None:
    """To the bit, under `training.deterministic`."""
    model, training = OF_RESUME[name]
    found = ran("resumes", model=model, training=training)
    assert found["codes"] == [0, 0, 0]
    assert found["number"] > 5
    assert found["apart"] == []


def test_a_run_goes_from_the_cpu_to_the_gpu_and_back() -> None:
    found = ran("crosses")
    assert found["code"] == 0
    assert found["apart"] < 1e-4


def test_no_memory_left_is_said() -> None:
    """A petabyte of weights."""
    much = {"model": {"graph": {"hidden": {"type": "linear", "out_features": 1 << 43, "input": "x"}}}}
    narrow = {"model": {"graph": {"narrow": {"type": "linear", "out_features": 4, "input": "hidden"}}}}
    found = ran("command", changes=[much, narrow, OF_NARROW], model="mlp")
    assert found["code"] == 3, found
    assert "out of memory" in found["said"], found
    assert "help: " in found["said"]


OF_NARROW = {"model": {"graph": {"layers": None, "logits": {"type": "linear", "out_features": 10, "input": "narrow"}}}}


def test_more_gpus_than_there_are() -> None:
    if kind() == "cpu":
        pytest.skip("of GPUs")
    found = ran("command", changes=[{"parallelism": "ddp", "layout": {"gpus": 24}}], model="mlp")
    assert found["code"] == 3
    assert "visible here" in found["said"]
