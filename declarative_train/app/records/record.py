"""Record of a run, read from its folder: settings, state, latest values.

The settings are in `run.json`, the events in `events.jsonl`. Of the events, only the first and those near the end are
read, so that a list of a thousand runs is fast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from declarative_train.core.names import EVENTS, RUN
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.failures import read_reason
from declarative_train.plan.checkpoint_files import PLAN, checkpoints_root, read_run
from declarative_train.plan.codec import PlanError, from_json
from declarative_train.run.sinks.console import median
from declarative_train.run.storage.remote_dir import is_uploading
from declarative_train.run.storage.run_lock import is_locked

TAIL = 1 << 16  # bytes at the end of a run's events that are read first
WINDOW = 1 << 22  # largest number of bytes that are read
FAILURES = "failures"

State = Literal["running", "finished", "stopped early", "stopped", "failed"]
_STATES: Mapping[str, State] = {"finished": "finished", "early_stop": "stopped early", "stopped": "stopped"}


@dataclass(frozen=True, slots=True)
class Record:
    """Record of one run.

    values            final metrics and losses, or the latest if the run has not ended
    value_steps       step after which each value was measured
    settings          values of the recipe by dotted path
    reason            why the run failed
    step_s            median step time of the last session
    predicted_step_s  the plan's prediction; None if it has none for this device"""

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
    step_s: float | None = None
    predicted_step_s: float | None = None

    @property
    def run(self) -> str:
        """Name of the run's folder."""
        return os.path.basename(self.folder)


def is_run(folder: str) -> bool:
    """Return whether a folder is the folder of a run: it has the settings or the events of one. A folder of several
    runs, a sweep, a checkpoint and an export have neither."""
    return any(os.path.exists(os.path.join(folder, name)) for name in (RUN, EVENTS))


def read_record(folder: str) -> Record | None:
    """Return the record of a run's folder; None if the folder is not a run. Without `run.json`, what is known is read
    from the events or the plan."""
    if not is_run(folder):
        return None
    about = read_run(folder)
    started, ended, latest, times = _read_last_session(os.path.join(folder, EVENTS))
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
        step_s=median(times) if times else None,
        predicted_step_s=_read_predicted_s(started or _first(os.path.join(folder, EVENTS))),
    )


Entry = dict[str, Any]


def _read_last_session(path: str) -> tuple[Entry, Entry | None, dict[str, Entry], list[float]]:
    """Return (first, end, latest, seconds) of the last session of a run: its events since the run was last started.

    first    event of the start
    end      event of the end, or None
    latest   {kind: newest event of this kind}; the evaluations of each set are a kind
    seconds  durations of the steps, the newest first

    Only the end of the file is read. If the session began before that, `first` is {}, and the earlier steps are
    missing."""
    latest: dict[str, Entry] = {}
    times: list[float] = []
    ended: Entry | None = None
    for entry in _from_the_end(path):
        kind = str(entry.get("event", ""))
        if kind == "RunStarted":
            return entry, ended, latest, times
        if kind == "StepDone" and entry.get("step_s") is not None:
            times.append(float(entry["step_s"]))
        if kind == "RunEnded" and not latest and ended is None:
            ended = entry
        elif kind in ("StepDone", "EpochDone", "CheckpointSaved"):
            latest.setdefault(kind, entry)
        elif kind == "EvaluationDone":
            latest.setdefault(f"{kind}/{entry.get('set')}", entry)
    return {}, ended, latest, times


def _first(path: str) -> Entry:
    """Return the first event of a file; {} if there is none."""
    try:
        with open(path, "rb") as file:
            return _event(file.readline()) or {}
    except OSError:
        return {}


def _read_predicted_s(started: Entry) -> float | None:
    found = (started.get("predicted") or {}).get("step_ms")
    return None if found is None else float(found) / 1e3


def _from_the_end(path: str) -> Iterator[Entry]:
    """Yield the events of a file, the last first. The file is read piece by piece from its end, at most its last
    `WINDOW` bytes."""
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
    except ValueError:  # after a crash, the last line may be incomplete
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
    if is_locked(Path(folder)) or is_uploading(Path(folder)):
        return "running", ""
    why = read_reason(Path(folder) / FAILURES)
    return "failed", why or "it ended without a message: killed, or the machine went down"


def _about_older(folder: str, started: Entry) -> Entry:
    """Return the facts about a run that has no `run.json`, under the keys of `run.json`. They come from `started`, the
    first event of the run. If `started` is {}, they come from the run's plan; if there is no plan either, return {}."""
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
    """Return (path of the last checkpoint of a run, path of its best checkpoint), according to their manifests. A path
    is None if there is no such checkpoint or the checkpoints cannot be reached.
    """
    try:
        found, _ = CheckpointStore(checkpoints_root(folder)).entries()
    except Exception:  # the store cannot be reached; each client library raises other exceptions
        return None, None
    best = next((entry.path for entry in found if entry.manifest.get("is_best")), None)
    return (found[0].path if found else None), best
