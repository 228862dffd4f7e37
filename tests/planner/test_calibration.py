"""Calibrations: written, read, and named by a recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train.components.hardware import HARDWARE
from declarative_train.planner.calibration import calibrate_to_rows, read_calibration, write_calibration
from declarative_train.planner.estimate.constants import DEFAULT, Machine

A100 = Machine(HARDWARE["a100-sxm-80gb"])


def test_a_calibration_comes_back_as_it_was_written(tmp_path: Path) -> None:
    machine = Machine(replace(A100.hardware, reached=0.5), replace(DEFAULT, call_s=1e-5))
    write_calibration(tmp_path / "node.json", machine, "by hand")
    found = read_calibration(tmp_path / "node.json")
    assert (found.hardware, found.constants) == (machine.hardware, machine.constants)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"hardware": "nothing", "figures": {}, "constants": {}}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "node.json").write_text(text)
    with pytest.raises(ValueError, match="dtrain calibrate"):
        read_calibration(tmp_path / "node.json")


def test_one_measured_step_scales_the_others(planned, tmp_path: Path) -> None:
    layout = "layout: {gpus: 1, hardware: a100-sxm-80gb}\n"
    before = planned(layout).estimate
    assert before is not None
    assert before.step_s is not None
    machine = calibrate_to_rows(A100, [(before.step_s, 1.5 * before.step_s)])
    write_calibration(tmp_path / "node.json", machine, "one row")
    after = planned(layout, f"layout.calibration={tmp_path / 'node.json'}").estimate
    assert after is not None
    assert after.step_s == pytest.approx(1.5 * before.step_s)
    assert after.low_s is not None
    assert before.low_s is not None
    assert after.low_s / after.step_s > before.low_s / before.step_s  # narrower


def test_many_rows_give_the_error() -> None:
    rows = [(1.0, ratio) for ratio in (1.0, 1.1, 1.2, 1.3, 1.4)]
    found = calibrate_to_rows(A100, rows).constants
    assert found.scale == pytest.approx(1.2)
    assert 0.1 < found.error < 0.2


def test_a_calibrated_cpu_has_times(planned, tmp_path: Path) -> None:
    cpu = replace(HARDWARE["cpu"], peak_flops={"fp32": 1e11}, memory_per_s=1e10, link_per_s=1e9, network_per_s=1e9)
    write_calibration(tmp_path / "cpu.json", Machine(cpu, replace(DEFAULT, runs_ahead=False)), "by hand")
    assert planned("layout: {gpus: 2}\nparallelism: ddp").estimate is None
    found = planned("layout: {gpus: 2}\nparallelism: ddp", f"layout.calibration={tmp_path / 'cpu.json'}").estimate
    assert found is not None
    assert found.hardware == "cpu"
    assert found.step_s is not None
    assert found.exposed_s == pytest.approx(sum(each.seconds or 0 for each in found.transfers))  # nothing hides it
