"""Folders of runs as a run leaves them, without running anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from declarative_train.run.event import EvaluationDone, Event, RunEnded, RunStarted, StepDone
from declarative_train.run.sinks.jsonl import JsonlSink


def started(folder: Path, first_step: int = 0, **hyperparameters: Any) -> RunStarted:
    return RunStarted(
        name="made",
        run_dir=str(folder),
        mode="single",
        device="cpu",
        num_ranks=1,
        num_steps=20,
        steps_per_epoch=10,
        first_step=first_step,
        num_parameters=10,
        plan_brief="",
        plan_text="",
        hyperparameters=hyperparameters,
        time_unix_s=100.0,
    )


def step(number: int, loss: float) -> StepDone:
    return StepDone(number, 1, loss, {}, {"accuracy": 0.5}, {"lr": 0.1}, None, 1.0, None, 0.0, 0, None, 100.0 + number)


def evaluated(number: int, accuracy: float) -> EvaluationDone:
    values = {"validation/loss": 1 - accuracy, "validation/accuracy": accuracy}
    return EvaluationDone(number, 1, "validation", values, 10, 0.1, 100.0 + number)


def ended(number: int, accuracy: float, status: str = "finished") -> RunEnded:
    return RunEnded(number, status, evaluated(number, accuracy).values, 2.0, 100.0 + number)


def make_run(folder: Path, *events: Event, settings: dict[str, Any] | None = None, **about: Any) -> Path:
    """`settings` None: a run of an earlier dtrain."""
    folder.mkdir(parents=True)
    if settings is not None:
        entries = {"name": "made", "mode": "single", "num_steps": 20, "started_unix_s": 100.0, **about}
        (folder / "run.json").write_text(json.dumps({**entries, "overrides": [], "settings": settings}))
    sink = JsonlSink(folder / "events.jsonl")
    for event in events:
        sink.write(event)
    sink.close()
    return folder
