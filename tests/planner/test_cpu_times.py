"""Comparison of step times on a CPU: its section of the page, and one run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train.components.hardware import HARDWARE
from declarative_train.planner.calibration import write_calibration
from declarative_train.planner.estimate.constants import DEFAULT, Machine
from tests.planner.cpu_times import NEXT, Timed, jobs, measure, part, part_of, with_part


def test_the_section_is_replaced_and_kept() -> None:
    first, second = (part([Timed("llama, ddp 2", 2, 0.01, measured_s)]) for measured_s in (0.01, 0.02))
    page = f"head\n\n{NEXT}\n\n- rest\n"
    assert part_of(page) == ""
    once = with_part(page, first)
    assert part_of(once) == first
    assert "| llama, ddp 2 | 2 | 10 ms | 10 ms | 1.00 |" in once
    assert with_part(once, second) == with_part(page, second)
    assert with_part(once, "") == page


@pytest.mark.long
def test_a_run_has_predicted_and_measured_seconds(tmp_path: Path) -> None:
    cpu = HARDWARE["cpu"]
    (job,) = jobs(tmp_path, ["llama, ddp 2"])
    figures = {"peak_flops": {"fp32": 1e11}, "memory_per_s": 1e10, "link_per_s": 1e9, "network_per_s": 1e9}
    machine = Machine(replace(cpu, **figures), replace(DEFAULT, runs_ahead=False))
    write_calibration(tmp_path / "cpu.json", machine, "by hand")
    timed = measure(job, tmp_path / "cpu.json", tmp_path)
    assert timed is not None
    assert timed.num_ranks == 2
    assert timed.predicted_s > 0
    assert timed.measured_s > 0
