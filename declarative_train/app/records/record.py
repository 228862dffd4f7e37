"""The folder of a run -> what became of it: its settings, its state, its last values.

A run says what it is in `run.json`, and what happened in `events.jsonl`, of which only the end is read here: lists of a
thousand runs must not take longer than people wait for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from declarative_train.core.run_files import EVENTS, RUN
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.failures import read_failures
from declarative_train.plan.codec import PlanError, from_json
from declarative_train.plan.run_folder import PLAN, checkpoints_root, read_run
from declarative_train.run.storage.run_lock import is_locked

TAIL = 1 << 16  # bytes of a run's events that are read first, from the end
WINDOW = 1 << 22  # and at most
FAILURES = "failures"

State = Literal["running", "finished", "stopped early", "stopped", "failed"]
_STATES: Mapping[str, State] = {"finished": "finished", "early_stop": "stopped early", "stopped": "stopped"}


@dataclass(frozen=True, slots=True)
class Record:
    """One run. `values` are its final ones, or the latest of one that has not ended; `value_steps` the step whose
    weights each is of; `reason` of a failure; `updated_unix_s` when it last wrote."""

    folder: str
    name: str
    mode: str
    state: State
    step: int
    num_steps: int
    values: Mapping[str, float]
    value_steps: Mapping[str, int]
    settings: Mapping[str, object] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    reason: str = ""
    seconds: float = 0.0
    started_unix_s: float = 0.0
    updated_unix_s: float = 0.0

    @property
    def run(self) -> str:
        """The folder's own name."""
        return os.path.basename(self.folder)


def is_run(folder: str) -> bool:
    """A sweep's folder, or one of runs, holds none of these; a checkpoint and an export have a plan alone."""
    return any(os.path.exists(os.path.join(folder, name)) for name in (RUN, EVENTS))


def read_record(folder: str) -> Record | None:
    """None where there is no run. Runs of an earlier dtrain are read from their events, without settings."""
    if not is_run(folder):
        return None
    about = read_run(folder)
    started, ended, latest = _story(os.path.join(folder, EVENTS))
    if not about:
        about = _about_older(folder, started)
    values, value_steps = _values(latest, ended)
    state, reason = _state(folder, ended)
    step = max((int(entry.get("step", 0)) for entry in latest.values()), default=0)
    stamps = [float(entry["time_unix_s"]) for entry in (*latest.values(), ended or {}) if "time_unix_s" in entry]
    begun = float(about.get("started_unix_s", 0.0) or 0.0)
    return Record(
        folder=folder,
        name=str(about.get("name", os.path.basename(os.path.dirname(folder)))),
        mode=str(about.get("mode", "")),
        state=state,
        step=int(ended.get("step", step)) if ended else step,
        num_steps=int(about.get("num_steps", 0) or 0),
        values=values,
        value_steps=value_steps,
        settings=about.get("settings") or {},
        overrides=tuple(about.get("overrides") or ()),
        reason=reason,
        seconds=float(ended.get("seconds", 0.0)) if ended else 0.0,
        started_unix_s=begun,
        updated_unix_s=max(stamps, default=begun),
    )


Entry = dict[str, Any]


def _story(path: str) -> tuple[Entry, Entry | None, dict[str, Entry]]:
    """(the start of the last session, its end, the latest event of each kind and set) as far as the end of the file
    holds them."""
    latest: dict[str, Entry] = {}
    ended: Entry | None = None
    for entry in _from_the_end(path):
        kind = str(entry.get("event", ""))
        if kind == "RunStarted":
            return entry, ended, latest
        if kind == "RunEnded" and not latest and ended is None:
            ended = entry
        elif kind in ("StepDone", "EpochDone", "CheckpointSaved"):
            latest.setdefault(kind, entry)
        elif kind == "EvaluationDone":
            latest.setdefault(f"{kind}/{entry.get('set')}", entry)
    return {}, ended, latest


def _from_the_end(path: str) -> Iterator[Entry]:
    """The events of a file, last first: of one that is large, those of its last part, once more of it where the first
    part holds nothing but steps."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            end, rest = size, b""
            while end > max(0, size - WINDOW):
                begin = max(0, end - TAIL)
                file.seek(begin)
                lines = (file.read(end - begin) + rest).split(b"\n")
                rest = lines.pop(0) if begin else b""
                yield from filter(None, map(_event, reversed(lines)))
                end = begin
    except OSError:
        return


def _event(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except ValueError:  # a last line that a crash cut short
        return None
    return entry if isinstance(entry, dict) else None


def _values(latest: Mapping[str, Entry], ended: Entry | None) -> tuple[dict[str, float], dict[str, int]]:
    values: dict[str, float] = {}
    steps: dict[str, int] = {}
    for kind, entry in latest.items():
        found = entry.get("values") if kind.startswith("EvaluationDone") else None
        if kind == "StepDone":
            found = {"training/loss": entry.get("loss")}
            found |= {f"training/{name}": value for name, value in (entry.get("metrics") or {}).items()}
        for name, value in (found or {}).items():
            values[name], steps[name] = float(value), int(entry.get("step", 0))
    if ended:
        final = {name: float(value) for name, value in (ended.get("values") or {}).items()}
        values |= final
        steps |= dict.fromkeys(final, int(ended.get("step", 0)))
        steps |= {name: int(step) for name, step in (ended.get("value_steps") or {}).items()}
    return values, steps


def _state(folder: str, ended: Entry | None) -> tuple[State, str]:
    if ended is not None and ended.get("status") in _STATES:
        return _STATES[ended["status"]], ""
    if is_locked(Path(folder)):
        return "running", ""
    failures = read_failures(Path(folder) / FAILURES)
    if failures:
        first = failures[0]
        at = f", step {first.step}" if first.step else ""
        return "failed", f"rank {first.rank}{at}: {first.message}"
    return "failed", "it ended without a word: killed, or the machine went down"


def _about_older(folder: str, started: Entry) -> Entry:
    """Of a run whose folder has no `run.json`: from its events, or its plan."""
    if started:
        known = {key: started.get(key) for key in ("name", "mode", "num_ranks", "num_steps")}
        settings = {
            _RECIPE_KEYS.get(key, f"training.{key}"): value
            for key, value in (started.get("hyperparameters") or {}).items()
            if key not in ("mode", "parameters", "ranks")
        }
        return {**known, "settings": settings, "started_unix_s": started.get("time_unix_s", 0.0)}
    try:
        plan = from_json(Path(folder, PLAN).read_text(encoding="utf-8"))
    except (OSError, PlanError):
        return {}
    return {"name": plan.name, "mode": plan.layout.mode, "num_steps": plan.training.num_steps}


_RECIPE_KEYS = {"seed": "seed", "optimizer": "training.optimizer.type", "lr_schedule": "training.lr_schedule.type"}


def checkpoints_of(folder: str) -> tuple[str | None, str | None]:
    """(the last checkpoint, the best one) of a run, by their manifests."""
    try:
        found, _ = CheckpointStore(checkpoints_root(folder)).entries()
    except (OSError, ImportError, ValueError):  # another machine, which does not answer
        return None, None
    best = next((entry.path for entry in found if entry.manifest.get("is_best")), None)
    return (found[0].path if found else None), best
