"""Events survive the way to a file and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from declarative_train.run.event import EpochDone, EvaluationDone, Notice, Progress, RunEnded, RunStarted
from declarative_train.run.sinks.jsonl import JsonlSink, read_events

STARTED = RunStarted("a", "runs/a/1", "single", "cpu", 1, 30, 10, 0, 5, "brief", "plan", {"lr": 0.1}, 1.0)


def write(path: Path, *events: object) -> None:
    sink = JsonlSink(path)
    for event in events:
        sink.write(event)  # type: ignore[arg-type]
    sink.close()


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    values = {"validation/loss": float("nan"), "validation/mae": float("inf")}
    events = [
        STARTED,
        EvaluationDone(10, 1, "validation", values, 5, 0.1, 2.0),
        EpochDone(1, 10, {"loss": 1.0}, 2.0, 3.0),
        Notice("a note", 3.0),
        RunEnded(10, "finished", {"validation/mae": 1.0}, 3.0, 4.0),
    ]
    write(path, events[0], Progress(1, 1), *events[1:])
    found = read_events(path)
    assert repr(found) == repr(events)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: 1 / 0)  # strict JSON: no NaN, no Infinity


def test_lines_are_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    sink = JsonlSink(path)
    sink.write(Notice("now", 1.0))
    assert "now" in path.read_text()
    sink.close()


def test_a_resumed_history_has_no_double_steps(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, STARTED, EpochDone(1, 10, {"loss": 1.0}, 1.0, 1.0), EpochDone(2, 20, {"loss": 0.9}, 1.0, 2.0))
    with path.open("a") as stream:
        stream.write('{"event": "EpochDo')  # cut short by a crash
        stream.write("\n")
    resumed = RunStarted("a", "runs/a/1", "single", "cpu", 1, 30, 10, 10, 5, "brief", "plan", {"lr": 0.1}, 5.0)
    write(path, resumed, EpochDone(2, 20, {"loss": 0.8}, 1.0, 6.0))
    epochs = [event for event in read_events(path) if isinstance(event, EpochDone)]
    assert [(event.epoch, event.values["loss"]) for event in epochs] == [(1, 1.0), (2, 0.8)]


def test_a_file_that_is_deleted_ends_the_run(tmp_path: Path) -> None:
    """What follows would be written into a file that nothing names, and the run would end as if all were well."""
    path = tmp_path / "run" / "events.jsonl"
    path.parent.mkdir()
    sink = JsonlSink(path)
    sink.write(Notice("first", 1.0))
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"deleted during the run: '.*events\.jsonl'"):
        sink.write(Notice("second", 2.0))
    with pytest.raises(FileNotFoundError):
        sink.close()
