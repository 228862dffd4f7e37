"""Calibrations: written, read, and named by a recipe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train.app.main import main
from declarative_train.components.hardware import HARDWARE
from declarative_train.plan.plan import Plan
from declarative_train.planner.calibration import calibrate_to_rows, read_calibration, write_calibration
from declarative_train.planner.estimate.constants import DEFAULT, Machine
from declarative_train.planner.text.describe import describe
from declarative_train.tools.calibrate import measure, probes
from tests.planner.times import predict, read_published, recipe_of

A100 = Machine(HARDWARE["a100-sxm-80gb"])
FIGURES = {"peak_flops": {"fp32": 1e11}, "memory_per_s": 1e10, "link_per_s": 1e9, "network_per_s": 1e9}
CPU = Machine(replace(HARDWARE["cpu"], **FIGURES), replace(DEFAULT, runs_ahead=False))


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
    assert 1.35 * before.step_s < after.step_s < 1.5 * before.step_s  # a row has an error of its own
    assert after.low_s is not None
    assert before.low_s is not None
    assert after.low_s / after.step_s > before.low_s / before.step_s  # narrower


def test_many_rows_give_the_error() -> None:
    rows = [(1.0, ratio) for ratio in (1.0, 1.1, 1.2, 1.3, 1.4)]
    found = calibrate_to_rows(A100, rows).constants
    assert found.scale == pytest.approx(1.2, rel=0.01)
    assert 0.1 < found.error < 0.2


def test_a_calibrated_cpu_has_times(planned, tmp_path: Path) -> None:
    write_calibration(tmp_path / "cpu.json", CPU, "by hand")
    assert planned("layout: {gpus: 2}\nparallelism: ddp").estimate is None
    found = planned("layout: {gpus: 2}\nparallelism: ddp", f"layout.calibration={tmp_path / 'cpu.json'}").estimate
    assert found is not None
    assert found.hardware == "cpu"
    assert found.step_s is not None
    assert found.exposed_s == pytest.approx(sum(each.seconds or 0 for each in found.transfers))  # nothing hides it


@pytest.mark.long
def test_the_command_takes_a_published_step_of_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known, *others = [row for row in read_published() if row["what"].startswith("torchtitan") and row["tensor"] == "1"]
    (tmp_path / "known.yaml").write_text(recipe_of(known))
    (tmp_path / "rows.csv").write_text(f"recipe,seconds\nknown.yaml,{known['seconds']}\n")
    output = tmp_path / "h100.json"
    assert main(["calibrate", "-o", str(output), "--rows", str(tmp_path / "rows.csv")]) == 0
    assert "measured steps take 1.2" in capsys.readouterr().out
    for row in others:
        assert predict(row, read_calibration(output)) == pytest.approx(float(row["seconds"]), rel=0.1)


def test_the_command_measures_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "SIZES", (64,))
    monkeypatch.setattr(measure, "TRIES", 3)
    monkeypatch.setattr(probes, "COUNTED", 5)
    output = tmp_path / "node.json"
    assert main(["calibrate", "-o", str(output)]) == 0
    assert "us for an operation" in capsys.readouterr().out
    machine = read_calibration(output)
    constants = machine.constants
    figures = (machine.hardware.peak_of("fp32"), machine.memory_per_s, constants.attention_efficiency, constants.draw_s)
    assert all(figure is not None and figure > 0 for figure in figures)
    assert not machine.constants.runs_ahead


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_steps_of_the_engine_give_the_time_of_the_host(num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """If each step takes what a machine with known constants predicts, these constants are found."""
    known = {"call_s": 9e-6, "tensor_s": 6e-6, "step_s": 3e-4}
    known |= {"shard_call_s": 8e-4, "stage_call_s": 5e-4} if num_ranks > 1 else {}
    host = replace(CPU.constants, step_s=0.0)
    found = probes.compile_probes(num_ranks)
    real = Machine(CPU.hardware, replace(host, **known))

    def measured(plan: Plan) -> probes.Measured:
        (probe,) = [each for each in found.values() if each.plan is plan]
        return probes.Measured(probe.predict_s(real), 1e-4 + known["tensor_s"] * len(plan.parameters))

    monkeypatch.setattr(probes, "measure", measured)
    fitted = probes.fit_to_steps(Machine(CPU.hardware, host), found).constants
    assert {name: getattr(fitted, name) for name in known} == pytest.approx(known)


@pytest.mark.parametrize(
    ("name", "parallelism", "times"),
    [
        ("tensor_s", "single", 4),  # two layers, each with a weight and a bias
        ("shard_call_s", "fsdp", 6),  # two units, gathered forward and backward, and scattered
        (
            "stage_call_s",
            "{pipeline: {stages: 2, microbatches: 2}}",
            6,
        ),  # four of a rank, and two while it waits for the other
    ],
)
def test_a_cpu_takes_time_for_each(planned, tmp_path: Path, name: str, parallelism: str, times: int) -> None:
    gpus = 1 if parallelism == "single" else 2
    layout = f"layout: {{gpus: {gpus}, device: cpu}}\nparallelism: {parallelism}"
    step_s = []
    for seconds in (0.0, 1.0):
        write_calibration(
            tmp_path / "cpu.json", Machine(CPU.hardware, replace(CPU.constants, **{name: seconds})), "by hand"
        )
        found = planned(layout, f"layout.calibration={tmp_path / 'cpu.json'}").estimate
        assert found is not None
        step_s.append(found.step_s)
    assert step_s[1] - step_s[0] == pytest.approx(times)


def test_one_process_of_a_cpu_computes_the_copies_one_after_another(planned, tmp_path: Path) -> None:
    write_calibration(tmp_path / "cpu.json", CPU, "by hand")
    one, all_copies = (
        planned(f"layout: {{gpus: 2, device: cpu}}\nparallelism: {mode}", f"layout.calibration={tmp_path / 'cpu.json'}")
        for mode in ("ddp", "dp")
    )
    assert one.estimate is not None
    assert all_copies.estimate is not None
    assert one.estimate.compute_s is not None
    assert all_copies.estimate.compute_s == pytest.approx(2 * one.estimate.compute_s)


def test_rows_without_a_predicted_time_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("recipe,hours\na.yaml,1\n")
    assert main(["calibrate", "-o", str(tmp_path / "a.json"), "--rows", str(tmp_path / "rows.csv")]) == 2
    assert "no columns `recipe` and `seconds`" in capsys.readouterr().err


def test_slow_data_limit_a_step(planned, tmp_path: Path) -> None:
    for name, per_s in (("fast", 1e9), ("slow", 1e3)):
        machine = Machine(HARDWARE["h100-sxm"], replace(DEFAULT, assemble_per_s=per_s))
        write_calibration(tmp_path / f"{name}.json", machine, "by hand")
    fast, slow = (
        planned("layout: {gpus: 1}", f"layout.calibration={tmp_path / name}.json", "data.workers=1")
        for name in ("fast", "slow")
    )
    assert fast.estimate is not None
    assert slow.estimate is not None
    assert fast.estimate.data_s is not None
    assert fast.estimate.step_s is not None
    assert fast.estimate.data_s < fast.estimate.step_s
    assert "less than a step" in describe(fast)
    on_gpu = planned("layout: {gpus: 1}", f"layout.calibration={tmp_path / 'slow'}.json")
    assert on_gpu.estimate is not None
    assert on_gpu.estimate.data_s == 0
    assert "the training set stays on the GPU" in describe(on_gpu)
    assert slow.estimate.step_s == slow.estimate.data_s == pytest.approx(1e6 * fast.estimate.data_s)
    assert "which limits the step: raise data.workers" in describe(slow)
