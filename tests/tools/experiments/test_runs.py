"""Lists of runs and comparisons: states, reasons, what differs, old folders, a thousand of them."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train.__main__ import main
from declarative_train.app.commands.runs import as_json
from declarative_train.app.commands.runs import text as runs_text
from declarative_train.app.records.record import read_record
from declarative_train.app.records.tables import what_differs
from declarative_train.engine.failures import Failure, write_failure
from declarative_train.plan.settings import find_differing, label, select_overridden, shorten_names
from declarative_train.run.storage.run_lock import RunLock
from tests.tools.experiments.folders import ended, evaluated, make_run, started, step

LR = "training.optimizer.lr"


def made(folder: Path, lr: float, accuracy: float, **more: object) -> Path:
    events = (started(folder), step(10, 0.7), evaluated(10, 0.4), step(20, 0.5), evaluated(20, accuracy))
    return make_run(folder, *events, ended(20, accuracy), settings={LR: lr, "seed": 0, **more})


def test_a_finished_run_has_its_final_values(tmp_path: Path) -> None:
    record = read_record(str(made(tmp_path / "a", 0.1, 0.9)))
    assert record is not None
    assert (record.state, record.step, record.num_steps, record.mode) == ("finished", 20, 20, "single")
    assert record.values["validation/accuracy"] == 0.9
    assert record.values["training/loss"] == 0.5


def test_the_states_of_a_run(tmp_path: Path) -> None:
    begun = (started(tmp_path), step(7, 0.5))
    states = {}
    for name, events in (
        ("stopped", (*begun, ended(7, 0.1, "stopped"))),
        ("early", (*begun, ended(7, 0.1, "early_stop"))),
        ("killed", begun),
        ("again", (*begun, ended(7, 0.1, "stopped"), started(tmp_path, 7), step(9, 0.4))),
        ("nothing", ()),
    ):
        record = read_record(str(make_run(tmp_path / name, *events, settings={})))
        assert record is not None
        states[name] = (record.state, record.step)
    assert states == {
        "stopped": ("stopped", 7),
        "early": ("stopped early", 7),
        "killed": ("failed", 7),
        "again": ("failed", 9),
        "nothing": ("failed", 0),
    }


def test_a_run_that_is_locked_is_running_and_one_that_failed_says_why(tmp_path: Path) -> None:
    folder, lock = make_run(tmp_path / "a", started(tmp_path), step(7, 0.5), settings={}), RunLock()
    lock.take(folder)
    record = read_record(str(folder))
    assert record is not None
    assert (record.state, record.reason) == ("running", "")
    lock.release()
    failure = Failure(1, None, 8, 1, "NonFiniteLoss", "the loss is nan", False, False, "")
    write_failure(folder / "failures", failure)
    record = read_record(str(folder))
    assert record is not None
    assert (record.state, record.reason) == ("failed", "rank 1, step 8: the loss is nan")


def test_values_behind_many_steps_are_found(tmp_path: Path) -> None:
    """The last evaluation lies before the part of the file that is read first."""
    steps = [step(number, 0.5) for number in range(11, 1500)]
    folder = make_run(tmp_path / "a", started(tmp_path), evaluated(10, 0.8), *steps, settings={})
    assert (folder / "events.jsonl").stat().st_size > 3 * (1 << 16)
    record = read_record(str(folder))
    assert record is not None
    assert (record.step, record.values["validation/accuracy"]) == (1499, 0.8)
    assert record.value_steps["validation/accuracy"] == 10


def test_runs_of_an_earlier_dtrain_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, lr in (("20260101-000000", 0.1), ("20260101-000000-2", 0.2)):
        folder = tmp_path / "made" / name
        events = started(folder, mode="single", parameters=10, **{"optimizer.lr": lr, "steps": 20})
        make_run(folder, events, ended(20, lr))
    assert main(["runs", str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert any("lr=0.1 " in row and "0.1000" in row for row in rows)
    assert any("lr=0.2 " in row for row in rows)


def test_the_table_fits_and_is_sorted_by_a_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for at, (lr, accuracy) in enumerate(((0.1, 0.5), (0.01, 0.9), (0.3, 0.7))):
        made(tmp_path / "runs" / "made" / f"20261122-00000{at}-single-lr={lr}", lr, accuracy)
    failure = Failure(0, None, 8, 1, "NonFiniteLoss", f"the loss is nan {'and so on' * 20}", False, False, "")
    write_failure(made(tmp_path / "runs" / "made" / "20261122-000009-single", 0.1, 0.2) / "failures", failure)
    assert main(["runs", str(tmp_path / "runs"), "--sort", "validation/accuracy"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80 + len(str(tmp_path))
    order = [word for line in text.splitlines() for word in line.split() if word.startswith("lr=")]
    assert order == ["lr=0.01", "lr=0.3", "lr=0.1", "lr=0.1"]
    assert main(["runs", str(tmp_path / "runs"), "--json", "--sort", "validation/loss"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["settings"][LR] for entry in found] == [0.01, 0.3, 0.1, 0.1]
    assert main(["runs", str(tmp_path / "runs"), "--sort", "validation/acuracy"]) == 2
    assert "did you mean `validation/accuracy`?" in capsys.readouterr().err


def test_a_thousand_runs_take_a_second(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {f"model.graph.node{number}.out_features": number for number in range(60)}
    for number in range(1000):
        make_run(
            tmp_path / "made" / f"20261122-{number:06d}-single",
            *(step(each, 0.5) for each in range(5)),
            ended(20, number / 1000),
            settings=settings | {LR: number / 1000},
        )
    begun_s = time.process_time()
    assert main(["runs", str(tmp_path)]) == 0
    assert time.process_time() - begun_s < 3.0  # 0.5 s where nothing else is going on
    assert "1,000 runs" in capsys.readouterr().out


def test_two_runs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "20261122-000001-single", 0.1, 0.5, precision="fp32")
    made(tmp_path / "20261122-000002-ddp", 0.01, 0.9, precision="fp32")
    words = ["compare", "20261122-000001", "ddp", "--dir", str(tmp_path)]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert [line.split() for line in text.splitlines() if line.startswith("training.optimizer.lr")] == [
        [LR, "0.1", "0.01"]
    ]
    assert "other settings are the same" in text
    assert "precision" not in text
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"] == {LR: [0.1, 0.01]}
    assert found["metrics"]["validation/accuracy"] == [0.5, 0.9]
    assert main(["compare", "2026", "ddp", "--dir", str(tmp_path)]) == 2
    assert "may be any of 2 runs" in capsys.readouterr().err


def test_a_recipe_and_a_folder_of_runs_stand_for_their_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, lr in ((1, 0.1), (2, 0.2)):
        made(tmp_path / "runs" / "wine" / f"20261122-00000{number}-single", lr, 0.5)
    made(tmp_path / "runs" / "beer" / "20261122-000001-single", 0.3, 0.5)
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "wine", "runs/beer", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == {LR: [0.2, 0.3]}
    assert main(["compare", "wein", "beer"]) == 2
    assert "there is no run `wein` below runs; `dtrain runs` lists them" in capsys.readouterr().err


def test_what_differs_is_told_in_few_words(tmp_path: Path) -> None:
    for at, (lr, width) in enumerate(((0.1, 8), (0.1, 16), (0.2, 16))):
        made(tmp_path / str(at), lr, 0.5, **{"vars.width": width, "model.graph.hidden.out_features": width})
    records = [record for at in range(3) if (record := read_record(str(tmp_path / str(at)))) is not None]
    assert list(what_differs(records).values()) == ["lr=0.1 width=8", "lr=0.1 width=16", "lr=0.2 width=16"]
    assert find_differing([record.settings for record in records[:2]]) == ["vars.width"]


def test_names_of_runs_are_short_and_safe() -> None:
    settings = {LR: 0.01, "data.source.path": "/a/b c/ü.csv", "model.graph.a.p": 1, "model.graph.b.p": 2}
    asked = select_overridden(["--set training.optimizer.lr=1e-2", "--set data.source.path='x'"], settings)
    assert label("ddp", asked) == "ddp-lr=0.01-path=csv"
    assert shorten_names(["model.graph.a.p", "model.graph.b.p"]) == {"model.graph.a.p": "a.p", "model.graph.b.p": "b.p"}
    assert len(label("single", {f"vars.{'x' * 30}{number}": "y" * 90 for number in range(9)})) <= 56
    assert label("fsdp", {}, {"seed": 3}) == "fsdp-seed=3"


def test_predicted_and_measured_seconds_of_a_step(tmp_path: Path) -> None:
    begun = replace(started(tmp_path), predicted={"step_ms": 12.0})
    times = [replace(step(number, 0.5), step_s=seconds) for number, seconds in ((1, 0.5), (2, 0.02), (3, 0.01))]
    record = read_record(str(make_run(tmp_path / "a", begun, *times, ended(3, 0.1), settings={})))
    assert record is not None
    assert (record.step_s, record.predicted_step_s) == (0.02, 0.012)
    shown = runs_text([record], str(tmp_path))
    assert "predicted  state" in shown
    assert re.search(r" 20 +12 +finished", shown)
    without = read_record(str(made(tmp_path / "b", 0.1, 0.9)))
    assert without is not None
    assert without.predicted_step_s is None
    assert "predicted" not in runs_text([without], str(tmp_path)).partition("\n\nbelow")[0]
    assert as_json(record)["predicted_step_s"] == 0.012
