"""Sink that writes one JSON object per event and line, with the event's name under `event`. `dtrain trace` reads these
lines.

`Progress` and events that exist only to be drawn are left out. A resumed run appends to the file. Its `RunStarted` has
the step from which it resumes (`first_step`), so that a reader can drop what earlier sessions wrote after this step."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Self

from declarative_train.core.names import EVENTS
from declarative_train.run import event as events
from declarative_train.run.event import ClassesPredicted, Event, Progress
from declarative_train.run.sink import Sink

FLUSH_S = 0.5
_QUIET_EVENTS = (Progress, ClassesPredicted)
_FREQUENT_EVENTS = (events.StepDone, events.EpochDone)  # an epoch may be as short as a few steps
_ENCODER = json.JSONEncoder(allow_nan=False)
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        events.RunStarted,
        events.StepDone,
        events.EvaluationDone,
        events.TextsWritten,
        events.EpochDone,
        events.CheckpointSaved,
        events.Notice,
        events.MemoryMeasured,
        events.RunEnded,
    )
}


class JsonlSink(Sink):
    """Sink that appends to the file `path`. Steps and epochs are collected, and written about every half second. Any
    other event is written at once, after the collected ones. So a crash may lose the last steps, but no step before the
    last checkpoint."""

    @classmethod
    def of_run(cls, run_dir: Path, quiet: bool) -> Self:
        return cls(run_dir / EVENTS)

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._stream = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 (open for the run)
        self._waiting: list[Event] = []  # written together: single writes during training cost four times as much
        self._written_s = 0.0

    def write(self, event: Event) -> None:
        if isinstance(event, _QUIET_EVENTS):
            return
        self._waiting.append(event)
        if not isinstance(event, _FREQUENT_EVENTS) or time.monotonic() - self._written_s > FLUSH_S:
            self._write()

    def flush(self) -> None:
        self._write()

    def close(self) -> None:
        try:
            self._write()
        finally:
            self._stream.close()

    def _write(self) -> None:
        """Write the waiting events to the file. Raises FileNotFoundError if the file was deleted, because the events
        would be lost."""
        if os.fstat(self._stream.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "deleted during the run", str(self._path))
        waiting, self._waiting = self._waiting, []
        self._stream.writelines(f"{_ENCODER.encode(_line(event))}\n" for event in waiting)
        self._stream.flush()
        self._written_s = time.monotonic()


def read_events(path: str | Path) -> list[Event]:
    """Return the events of a run as one history. If a session resumed from a step, the events that earlier sessions
    wrote for later steps are left out. So is a last line that is incomplete after a crash."""
    found: list[Event] = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        kind = _KINDS.get(entry.pop("event", ""))
        if kind is None:
            continue
        event = kind(**{name: _number(value) for name, value in entry.items()})
        if isinstance(event, events.RunStarted):
            found = [old for old in found if getattr(old, "step", 0) <= event.first_step]
            found = [old for old in found if not isinstance(old, events.RunEnded)]
        found.append(event)
    return found


def _line(event: Event) -> dict[str, object]:
    named = {item.name: _jsonable(getattr(event, item.name)) for item in fields(event) if item.name != "graph"}
    return {"event": type(event).__name__} | named


def _jsonable(value: object) -> object:
    """Return the value with nan and inf as strings, because JSON cannot represent them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _jsonable(item) for key, item in value.items()}
    return value


def _number(value: object) -> object:
    if isinstance(value, str) and value in ("nan", "inf", "-inf"):
        return float(value)
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    return value
