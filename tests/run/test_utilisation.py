"""Model FLOPs utilisation: on a GPU that the table knows, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from declarative_train.components.hardware import HARDWARE, hardware_of_device
from declarative_train.plan.predictions import EstimatePlan, FlopsPlan
from declarative_train.run import meter
from declarative_train.run.event import StepDone
from declarative_train.run.launch import run
from declarative_train.run.meter import comparable_estimate, peak_flops, samples_per_s_at_peak
from tests.engine.made_recipes import DIGITS, compiled, write_data
from tests.engine.plans import layout, make_plan
from tests.kept import Kept

CUDA = torch.device("cuda", 0)


def test_a_run_tells_its_utilisation_where_the_peak_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, DIGITS)
    monkeypatch.setattr(meter, "peak_flops", lambda device, precision: 1e12)
    kept = Kept()
    assert run(plan, sinks=lambda run_dir: (kept,)) == 0
    steps = kept.of(StepDone)
    assert steps
    for step in steps:
        assert step.step_s == pytest.approx(plan.batch.global_batch_size / step.samples_per_s, rel=0.5)
        assert step.mfu == pytest.approx(step.samples_per_s * plan.flops.model / 1e12)
        assert 0 < step.mfu < 1


def test_on_the_cpu_there_is_no_peak_and_so_no_utilisation() -> None:
    plan = replace(make_plan(), flops=FlopsPlan(10, 20))
    assert peak_flops(torch.device("cpu"), "fp32") is None
    assert samples_per_s_at_peak(plan, torch.device("cpu")) is None


def test_the_peak_is_that_of_the_device_and_the_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert peak_flops(CUDA, "bf16") == 989.4e12
    assert peak_flops(CUDA, "fp32") == 67e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert peak_flops(CUDA, "bf16") is None  # it has none
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert peak_flops(CUDA, "bf16") is None  # a part of a GPU has a part of its peak


def test_all_devices_of_the_plan_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "peak_flops", lambda device, precision: 3e6)
    plan = replace(make_plan(), flops=FlopsPlan(10, 20, recomputed=10))
    one = replace(plan, layout=layout("single", 1))
    assert samples_per_s_at_peak(one, CUDA) == 1e5  # what is computed again is no work of the model
    assert samples_per_s_at_peak(replace(plan, layout=layout("ddp", 4)), CUDA) == 4e5
    assert samples_per_s_at_peak(replace(plan, layout=layout("dp", 1, num_copies=2)), CUDA) == 2e5


def test_a_prediction_is_compared_only_on_the_hardware_that_it_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    found = EstimatePlan("h100-sxm", 2**31, 2**36, 0.5, 0.4, 0.6, 0.4, 0.0, 0.0, 0.1, 0.25, 0.25, (), ())
    plan = replace(make_plan(), estimate=found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    assert comparable_estimate(plan, CUDA) == ({"step_ms": 500.0, "memory_gib": 2.0, "mfu": 0.25}, None)
    assert comparable_estimate(make_plan(), CUDA) == ({}, None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some new GPU")
    assert comparable_estimate(plan, CUDA)[0]["step_ms"] == 500.0
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA L4")
    for device, here in ((CUDA, "l4"), (torch.device("cpu"), "cpu")):
        values, notice = comparable_estimate(plan, device)
        assert not values
        assert notice == f"the plan's estimates are for h100-sxm, but this run is on {here}: they are not compared"


def test_devices_have_one_name_each_and_figures_that_make_sense() -> None:
    names = [name for each in HARDWARE.values() for name in each.device_names]
    assert len(names) == len(set(names))
    assert list(HARDWARE) == sorted(HARDWARE)
    for name, each in HARDWARE.items():
        assert each.name == name
        assert each.source
        assert all(hardware_of_device(device) is each for device in each.device_names)
        if name == "cpu":
            continue
        assert each.memory_bytes
        assert each.peak_flops["fp64"] <= each.peak_flops["fp32"] <= each.peak_flops["fp16"]
        assert each.peak_of("bf16") in (None, each.peak_flops["fp16"])
        assert each.memory_per_s
        assert each.link_per_s
        assert each.network_per_s
        assert each.memory_per_s > each.link_per_s >= each.network_per_s
