"""Runs in processes of their own, with a fault planted: started, watched, asked to stop."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from declarative_train.logs.event import CheckpointSaved, StepDone
from declarative_train.logs.sinks.jsonl import read_events
from declarative_train.plan.codec import to_json
from tests.runtime.made_recipes import compiled

LIMIT_S = 60


def saved(directory: Path, recipe: Mapping[str, Any]) -> Path:
    path = directory / "plan.json"
    path.write_text(to_json(compiled(directory, recipe)))
    return path


def start(plan: Path, fault: str = "nothing", rank: int = 0, step: int = 0, *more: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error::ResourceWarning", "-m", "tests.runtime.faulty", str(plan), fault]
    return subprocess.Popen(
        [*command, str(rank), str(step), *more],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit code, what it said on standard error); every process of its session is gone."""
    _, errors = process.communicate(timeout=LIMIT_S)
    assert not session(process.pid), f"left behind: {session(process.pid)}\n{errors}"
    return process.returncode, errors


def session(leader: int) -> list[int]:
    """Living processes of the session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] not in "ZX":
            found.append(int(path.name))
    return found


def wait_for_steps(directory: Path, step: int, kind: type[StepDone | CheckpointSaved] = StepDone) -> None:
    """Until a logging step (or a checkpoint) at or after `step` is in the log."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for path in (directory / "runs" / "made").glob("*/events.jsonl"):
            if any(isinstance(event, kind) and event.step >= step for event in read_events(path)):
                return
        time.sleep(0.05)
    raise AssertionError("no steps were made")
