"""Sweep: its points run as processes, some at the same time, and are watched and stopped together. A stopped sweep can
resume.

<logging.dir>/<name>/sweeps/<time>/
    results.json        every point: its values, its state, its metric; rewritten when a point ends
    plans/000.json      plan that the process of point 0 runs
    000-lr=0.01/        run of point 0, an ordinary run folder
    optuna.journal      for an optuna search
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from declarative_train.app.records.record import Record, read_record
from declarative_train.core.names import EVENTS
from declarative_train.plan.codec import save
from declarative_train.plan.plan import Plan
from declarative_train.plan.settings import format_value, safe, shorten_names
from declarative_train.run.signals import EXIT_FAILED, EXIT_STOPPED, SIGNALLED, StopRequest
from declarative_train.run.storage.run_lock import is_locked
from declarative_train.tools.sweep.device_slots import DeviceSlot
from declarative_train.tools.sweep.search import Point, Search
from declarative_train.tools.sweep.watchdog import Guard

RESULTS, PLANS, SWEEPS = "results.json", "plans", "sweeps"
ORPHANS_S = 60.0  # how long points may take to stop after their sweep was killed
LOOK_S = 0.2  # interval of checks of the running points
LONGEST_NAME = 60

PointState = Literal["finished", "stopped early", "pruned", "failed", "stopped", "running"]
ENDED = ("finished", "stopped early", "pruned")  # not repeated when a sweep resumes


@dataclass(frozen=True)
class Result:
    """Result of the run at a point of a sweep. `folder`: the run's folder. `value`: the value of the sweep's metric,
    None if there is none. `reason`: why the run failed. `fingerprint`: fingerprint of its plan."""

    point: Point
    folder: str
    state: PointState
    value: float | None = None
    reason: str = ""
    fingerprint: str = ""
    record: Record | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Aim:
    """Metric by which the points of a sweep are compared, and whether larger values of it are better."""

    metric: str
    higher_is_better: bool

    def value_of(self, record: Record | None) -> float | None:
        """Return the best value of the metric if the run recorded one, else its final value. Return None if there is
        neither."""
        if record is None:
            return None
        return record.values.get(f"best/{self.metric}", record.values.get(self.metric))

    def sort(self, results: Sequence[Result]) -> list[Result]:
        """Return the results with the best first. Results without a value are last."""

        def key(result: Result) -> tuple[bool, float]:
            value = math.nan if result.value is None else result.value
            return math.isnan(value), -value if self.higher_is_better else value

        return sorted(results, key=key)


@dataclass
class _Running:
    point: Point
    plan: Plan
    folder: Path
    slot: DeviceSlot
    process: subprocess.Popen[str]
    offset: int = 0  # number of its events that were read
    is_pruned: bool = False


class SweepRunner:
    """Runner of a sweep. `compiled`: function that returns the plan of a point. If the plan has errors, the function
    prints them and returns None, and the point counts as failed. `say`: function that prints a line. `about`:
    description of the sweep for `results.json`. `known`: results from before the sweep was resumed."""

    def __init__(
        self,
        folder: Path,
        search: Search,
        aim: Aim,
        compiled: Callable[[Point], Plan | None],
        say: Callable[[str], None],
        about: Mapping[str, Any],
        known: Sequence[Result] = (),
    ) -> None:
        self.folder, self.search, self.aim = folder, search, aim
        self._compiled, self._say, self._about = compiled, say, dict(about)
        self._known = {result.point.key: result for result in known}
        self.results = {result.point.key: result for result in known if result.state in ENDED}
        self._running: list[_Running] = []
        self._is_asked = False

    def run(self, slots: Sequence[DeviceSlot]) -> int:
        """Run every point that has not ended before, as many at the same time as there are slots. Return the exit code:
        0, 3 if a point failed, or 75 if the sweep was requested to stop."""
        watch = StopRequest(on_first=self._request_stop, on_second=self._kill)
        watch.install()
        free, has_more = list(slots), True
        (self.folder / PLANS).mkdir(parents=True, exist_ok=True)
        self._write()  # so that `--resume` finds it, even if no point ends
        self._guard = Guard()
        try:
            while self._running or (has_more and not self._is_asked):
                while free and has_more and not self._is_asked:
                    has_more = self._begin(free)
                self._look(free)
                if self._running:
                    time.sleep(LOOK_S)
        finally:
            self._kill()
            self._guard.close()
            watch.restore()
        self._write()
        if self._is_asked:
            return EXIT_STOPPED
        return EXIT_FAILED if any(result.state == "failed" for result in self.results.values()) else 0

    def _begin(self, free: list[DeviceSlot]) -> bool:
        """Start the run of the sweep's next point in one of the `free` slots. Return whether there was another
        point."""
        point = self.search.next()
        if point is None:
            return False
        known = self._known.get(point.key)
        if known is not None and known.state in ENDED:
            self.results[point.key] = known
            self.search.tell(point, known.value, pruned=known.state == "pruned")
            return True
        plan = self._compiled(point)
        folder = self.folder / point_name(point)
        if plan is None:
            self._end(Result(point, str(folder), "failed", reason="it cannot be planned"))
            return True
        path = self.folder / PLANS / f"{point.number:03d}.json"
        save(plan, path)
        slot = free.pop(0)
        folder.mkdir(exist_ok=True)
        self._wait_for_orphan(folder)
        process = _start(path, folder, slot)
        self._guard.begin(process.pid)
        self._running.append(_Running(point, plan, folder, slot, process))
        self._say(f"{point_name(point)}: started")
        return True

    def _wait_for_orphan(self, folder: Path) -> None:
        """Wait until the run in `folder`, which an earlier, killed sweep left behind, has stopped. Also return after
        ORPHANS_S seconds, and if this sweep is asked to stop."""
        deadline_s = time.monotonic() + ORPHANS_S
        while is_locked(folder) and not self._is_asked and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)

    def _look(self, free: list[DeviceSlot]) -> None:
        for each in list(self._running):
            code = each.process.poll()
            self._follow(each)
            if code is None:
                continue
            self._running.remove(each)
            self._guard.end(each.process.pid)
            free.append(each.slot)
            free.sort(key=lambda slot: slot.number)
            self._end(self._result(each, code))

    def _follow(self, each: _Running) -> None:
        """Read new evaluations of a running point. If the search calls the point hopeless, ask its run to stop."""
        try:
            with open(each.folder / EVENTS, "rb") as file:
                file.seek(each.offset)
                text = file.read()
        except OSError:
            return
        whole = text[: text.rfind(b"\n") + 1]
        each.offset += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                value = (entry.get("values") or {}).get(self.aim.metric)
                if entry.get("event") != "EvaluationDone" or value is None or each.is_pruned:
                    continue
                if self.search.is_hopeless(each.point, int(entry["step"]), float(value)):
                    each.is_pruned = True
                    _signal(each.process, signal.SIGTERM)

    def _result(self, each: _Running, code: int) -> Result:
        record = read_record(str(each.folder))
        value, mark = self.aim.value_of(record), each.plan.fingerprint
        state: PointState = "failed"
        reason = record.reason if record is not None else ""
        if each.is_pruned and code == EXIT_STOPPED:
            state = "pruned"
        elif code in (EXIT_STOPPED, SIGNALLED + signal.SIGTERM):
            state = "stopped"
        elif code == 0 and record is not None and record.state in ("finished", "stopped early"):
            state = "stopped early" if record.state == "stopped early" else "finished"
        else:
            reason = last_words(each.folder) or reason or f"exit code {code}"
        return Result(each.point, str(each.folder), state, value, reason if state == "failed" else "", mark, record)

    def _end(self, result: Result) -> None:
        self.results[result.point.key] = result
        if result.state != "stopped":  # a stopped point continues when the sweep is resumed
            value = result.value if result.state in ENDED else None
            self.search.tell(result.point, value, pruned=result.state == "pruned")
        metric = "" if result.value is None else f", {self.aim.metric} {result.value:.4g}"
        self._say(f"{point_name(result.point)}: {result.state}{metric}{f': {result.reason}' if result.reason else ''}")
        self._write()

    def _request_stop(self) -> None:
        """Request every run to save a checkpoint and stop. Afterwards no more points are started."""
        self._is_asked = True
        self._say("stopping every point at the end of a step, with a checkpoint; repeat the signal to stop at once")
        for each in list(self._running):
            _signal(each.process, signal.SIGTERM)

    def _kill(self) -> None:
        for each in list(self._running):
            with suppress(OSError):
                os.killpg(each.process.pid, signal.SIGKILL)

    def _write(self) -> None:
        """Write the results of all points to `results.json`, including those from before the sweep was resumed. A new
        file is written and renamed, so that `results.json` is always complete."""
        results = {**self._known, **self.results}
        entries = [as_json(result) for result in self.aim.sort(list(results.values()))]
        text = json.dumps({**self._about, "points": entries}, indent=1)
        new = self.folder / f"{RESULTS}.new"
        new.write_text(f"{text}\n", encoding="utf-8")
        new.rename(self.folder / RESULTS)


def _start(plan: Path, folder: Path, slot: DeviceSlot) -> subprocess.Popen[str]:
    """Start the process that runs a point of a sweep. It has its own process session, so that Ctrl-C in the terminal
    signals only the sweep, which then stops each point. `-P` prevents imports from the working directory."""
    command = [sys.executable, "-P", "-m", "declarative_train", "run", str(plan), "--run-dir", str(folder), "--resume"]
    with open(folder / "console.txt", "a", encoding="utf-8") as console:
        process = subprocess.Popen(
            [*command, "--quiet"],
            env=os.environ | slot.environment,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            text=True,
            start_new_session=True,
        )
    if slot.cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # the process has exited
            os.sched_setaffinity(process.pid, slot.cores)
    return process


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(OSError):
        process.send_signal(number)


def last_words(folder: Path) -> str:
    """Return the last line with the prefix `dtrain: ` that the run in `folder` printed, which says why it failed.
    Return "" if there is none."""
    try:
        lines = (folder / "console.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("dtrain: ") for line in reversed(lines) if line.startswith("dtrain: ")), "")


def point_name(point: Point) -> str:
    """Return the folder name of a sweep's point, such as `003-lr=0.01-width=64`. It stays the same when the sweep is
    resumed."""
    names, text = shorten_names(point.values), f"{point.number:03d}"
    for key, value in point.values.items():
        word = f"-{names[key]}={safe(format_value(value))}"
        text += word if len(text) + len(word) <= LONGEST_NAME else ""
    return text


def as_json(result: Result) -> dict[str, Any]:
    value = result.value
    metrics = {} if result.record is None else dict(result.record.values)
    return {
        "number": result.point.number,
        "values": dict(result.point.values),
        "state": result.state,
        "value": _finite(value),
        "metrics": {name: _finite(each) for name, each in metrics.items()},
        "step": None if result.record is None else result.record.step,
        "folder": result.folder,
        "reason": result.reason or None,
        "fingerprint": result.fingerprint,
    }


def _finite(value: float | None) -> float | str | None:
    return value if value is None or math.isfinite(value) else str(value)


def read_results(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """Return the description of a sweep and the results of its points, read from its results file. Raises OSError and
    ValueError."""
    found = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
    results = []
    for entry in found.pop("points"):
        value = None if entry["value"] is None else float(entry["value"])
        point = Point(entry["number"], entry["values"], is_drawn=found.get("type") == "optuna")
        record = read_record(entry["folder"])
        results.append(
            Result(point, entry["folder"], entry["state"], value, entry["reason"] or "", entry["fingerprint"], record)
        )
    return found, results


def new_sweep_dir(plan: Plan) -> Path:
    """Create the folder of a new sweep and return it. Raises OSError."""
    root, now = Path(plan.logging.dir) / plan.name / SWEEPS, time.strftime("%Y%m%d-%H%M%S")
    root.mkdir(parents=True, exist_ok=True)
    path, number = root / now, 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
            path = root / f"{now}-{number}"
        else:
            return path


def newest_sweep(plan: Plan) -> Path | None:
    found = sorted((Path(plan.logging.dir) / plan.name / SWEEPS).glob(f"*/{RESULTS}"))
    return found[-1].parent if found else None
