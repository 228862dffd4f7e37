"""Runs in processes of their own, with a fault planted: started, watched, asked to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from declarative_train.plan.codec import to_json
from declarative_train.run.event import CheckpointSaved, Event, StepDone
from declarative_train.run.sinks.jsonl import read_events
from tests import started
from tests.engine.made_recipes import compiled
from tests.started import LIMIT_S, Started


def saved(directory: Path, recipe: Mapping[str, Any]) -> Path:
    path = directory / "plan.json"
    path.write_text(to_json(compiled(directory, recipe)))
    return path


def start(
    plan: Path, fault: str = "nothing", rank: int = 0, step: int = 0, *more: str, ignored: tuple[int, ...] = ()
) -> Started:
    return started.start("tests.engine.faulty", str(plan), fault, str(rank), str(step), *more, ignored=ignored)


def finish(process: Started) -> tuple[int, str]:
    """(exit code, what it said on standard error); every process of its session is gone."""
    code, _, errors = started.finish(process)
    return code, errors


def wait_for_steps(directory: Path, step: int, kind: type[StepDone | CheckpointSaved] = StepDone) -> None:
    """Wait until a logging step (or a checkpoint) at or after `step` is in the log."""
    wait_until_logged(directory, lambda event: isinstance(event, kind) and event.step >= step)


def wait_until_logged(directory: Path, is_it: Callable[[Event], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for path in (directory / "runs" / "made").glob("*/events.jsonl"):
            if any(is_it(event) for event in read_events(path)):
                return
        time.sleep(0.05)
    raise AssertionError("it is not in the log")
