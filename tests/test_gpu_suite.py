"""The suite for one GPU runs here on the CPU for a few cells, so that its code is not first run where time is dear."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.gpu.device import NO_GPU, has_device
from tests.gpu.run_cell import ROOT, ran


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DTRAIN_TEST_DEVICE", "cpu")


def test_ranks_that_share_a_device_pass_their_tensors_by_the_cpu() -> None:
    assert ran("ways", names=["zero bubble 2"], precision_name="fp64")["zero bubble 2"] <= 1e-9


def test_a_resumed_run_is_the_one_that_was_never_stopped() -> None:
    found = ran("resumes", model="gpt", training={})
    assert (found["codes"], found["apart"]) == ([0, 0, 0], [])


def test_without_a_gpu_one_line_says_so() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DTRAIN_TEST_DEVICE"}
    if has_device() and os.environ.get("DTRAIN_TEST_DEVICE") != "cpu":
        pytest.skip("there is one")
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu"],
        cwd=ROOT,
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, NO_GPU)
