"""Heartbeats: each rank writes its progress to a file, its agent sends it to the coordinator, and the coordinator finds
ranks that are stuck.

A rank that hangs cannot report this itself, and the others wait for it in a collective. So a thread of each rank writes
the step, the current collective (from torch's flight recorder) and a count of batches."""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from declarative_train.core.amounts import in_ranges
from declarative_train.engine.failures import limit_s
from declarative_train.run.signals import SAVING

if TYPE_CHECKING:
    from declarative_train.run.rank import FailureContext

BEAT_S = 0.5
SILENT_S = 5.0  # a rank that has written nothing for this time does not run
LEAST_S = 60.0  # least value of `warn_s`, because data and evaluations may pause a run
MANY_STEPS = 10.0  # `warn_s`, in median times of a step
NUM_STEPS = 50  # newest steps, over which the median is taken
RECORDED = "64"  # collectives that torch's recorder keeps
LOOKS_PER_BEAT = 2  # how often the thread checks whether the rank waits in a collective
NUM_LOOKS = 240  # number of looks over which the rank's own work is measured


@dataclass(frozen=True, slots=True)
class Beat:
    """State of one rank at one time, which the rank writes to a file as a heartbeat.

    number      number of this heartbeat
    step        the current step, or None
    count       number of batches so far, also those of evaluations
    is_saving   the rank saves a checkpoint
    collective  the collective in which the rank waits, or ""
    looks       how often it was checked whether the rank waits in a collective; this is not checked before the first
                step has ended and during saves
    busy        in how many of these checks the rank was not waiting"""

    rank: int
    number: int
    step: int | None
    count: int
    is_saving: bool
    collective: str
    looks: int = 0
    busy: int = 0


def record_collectives() -> None:
    """Make torch record the last collectives of this process. Call it before a process group is created."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", RECORDED)


def start_heartbeat(context: FailureContext, scratch: Path, failures: Path) -> None:
    """Start the thread that writes this rank's heartbeats to files in `scratch`. If the rank makes no progress for too
    long, the thread also writes stacks and collectives to files in `scratch` and in `failures`."""
    threading.Thread(target=_beat, args=(context, scratch, failures), name="heartbeat", daemon=True).start()


def _beat(context: FailureContext, scratch: Path, failures: Path) -> None:
    path, number, pace = scratch / f"beat_{context.rank}", 0, Pace()
    has_dumped, looks, busy = False, 0, 0
    while True:
        number += 1
        saving = SAVING.since_s is not None
        beat = Beat(context.rank, number, context.step, context.count, saving, _describe_collective(), looks, busy)
        pace.add(beat, time.monotonic())
        with suppress(OSError):
            path.with_suffix(".new").write_text(json.dumps(asdict(beat)))
            path.with_suffix(".new").rename(path)
        is_late = pace.idle_s > 0.8 * min(pace.warn_s, pace.end_s)
        if is_late and not has_dumped:
            for folder in (failures, scratch):  # the agent sends the second to the head, whose disk may differ
                _dump_stacks(folder / f"waiting_{context.rank}.txt", beat)
        has_dumped = is_late
        for _ in range(LOOKS_PER_BEAT):
            time.sleep(BEAT_S / LOOKS_PER_BEAT)
            if context.has_stepped and SAVING.since_s is None:
                looks, busy = looks + 1, busy + (not _describe_collective())


def read_beats(scratch: Path) -> tuple[Beat, ...]:
    found = []
    for path in sorted(scratch.glob("beat_*[0-9]")):
        with suppress(OSError, ValueError, TypeError):
            found.append(Beat(**json.loads(path.read_text())))
    return tuple(found)


def read_waiting(scratch: Path) -> dict[str, str]:
    """Return the files that ranks wrote to `scratch` because they waited too long for others, as a dict from file name
    to content."""
    return {path.name: path.read_text(errors="replace") for path in scratch.glob("waiting_*.txt")}


def _read_recorder(*, only_active: bool = False) -> dict[str, Any]:
    from torch._C import _distributed_c10d

    try:
        return dict(json.loads(_distributed_c10d._dump_fr_trace_json(None, only_active)))  # type: ignore[attr-defined]
    except AttributeError:  # an older version
        return {}


def _describe_collective() -> str:
    """Return a description of the collective that this rank has begun and not finished, or ""."""
    if "torch.distributed" not in sys.modules:
        return ""
    entries = [entry for entry in _read_recorder(only_active=True).get("entries", []) if not entry["retired"]]
    if not entries:
        return ""
    last = entries[-1]
    sizes = " and ".join("x".join(map(str, size)) or "1" for size in last["input_sizes"])
    name = last["profiling_name"].rpartition(":")[2]
    return f"{name} of {sizes} elements (number {last['collective_seq_id'] or last['p2p_seq_id']})"


def _dump_stacks(path: Path, beat: Beat) -> None:
    """Write the stack of each thread of this process, and the collectives that torch recorded, to a file."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            print(json.dumps(asdict(beat)), file=file, flush=True)
            faulthandler.dump_traceback(file)
            print(json.dumps(_read_recorder(), indent=1), file=file)


@dataclass(slots=True)
class Pace:
    """Speed and progress of a rank, computed from its heartbeats. `silent_s`: seconds since its last new heartbeat.
    `idle_s`: seconds since it last made progress."""

    beat: Beat | None = None
    silent_s: float = 0.0
    idle_s: float = 0.0
    _heard_s: float = 0.0
    _moved_s: float = 0.0
    _begun: tuple[int, float] | None = None  # a step, and when it began
    _steps_s: list[float] = field(default_factory=list)
    _looks: list[tuple[int, int]] = field(default_factory=list)  # `looks` and `busy` of earlier heartbeats

    def add(self, beat: Beat, now_s: float) -> None:
        """Update speed and progress from `beat`, the rank's newest heartbeat. It may be the same as in the last call.
        `now_s`: current time of `time.monotonic`."""
        before = self.beat
        is_new = before is None or before.number != beat.number
        if is_new:
            self._heard_s = now_s
        has_moved = before is None or (before.step, before.count) != (beat.step, beat.count)
        if has_moved or (is_new and beat.is_saving):
            self._moved_s = now_s
        if has_moved and beat.step is not None:
            if self._begun is not None and beat.step > self._begun[0]:
                self._steps_s.append((now_s - self._begun[1]) / (beat.step - self._begun[0]))
                del self._steps_s[:-NUM_STEPS]
            self._begun = (beat.step, now_s)
        if is_new:
            self._looks.append((beat.looks, beat.busy))
            while len(self._looks) > 1 and beat.looks - self._looks[1][0] >= NUM_LOOKS:
                del self._looks[0]
        self.beat = beat
        self.silent_s, self.idle_s = now_s - self._heard_s, now_s - self._moved_s

    @property
    def work_s(self) -> float | None:
        """Seconds per step in which the rank did not wait in a collective. None until there are enough heartbeats."""
        if not self._looks or not self._steps_s:
            return None
        looks, busy = (last - first for last, first in zip(self._looks[-1], self._looks[0], strict=True))
        return None if looks < NUM_LOOKS else median(self._steps_s) * busy / looks

    @property
    def end_s(self) -> float:
        """Seconds without progress after which the round (a start of all ranks) is ended and all ranks are stopped. It
        is a little less than the time limit of collectives."""
        limit = limit_s("DTRAIN_TIMEOUT_S")
        return max(0.5 * limit, 0.95 * limit - 2)

    @property
    def warn_s(self) -> float:
        """Seconds without progress after which a warning is printed: `MANY_STEPS` times the median time of a step, but
        at least `LEAST_S` and at most `end_s`. Before the end of the first step it is `end_s`."""
        if not self._steps_s:
            return self.end_s
        return min(self.end_s, max(LEAST_S, MANY_STEPS * median(self._steps_s)))


def find_stuck(paces: Mapping[int, Pace]) -> list[int]:
    """Return the ranks for which the other ranks wait; [] if the heartbeats do not show them. `paces`: the pace of each
    rank.

    They are the ranks that no longer write heartbeats. If there are none, they are the ranks that are in no collective
    while others are. If there are none of these either, they are the ranks that have done the fewest batches."""
    beats = {rank: pace.beat for rank, pace in paces.items() if pace.beat is not None}
    silent = [rank for rank in beats if paces[rank].silent_s > min(SILENT_S, paces[rank].end_s / 2)]
    if silent:
        return silent
    free = [rank for rank, beat in beats.items() if not beat.collective]
    if free and len(free) < len(beats):
        return free
    least = min(beat.count for beat in beats.values())
    behind = [rank for rank, beat in beats.items() if beat.count == least]
    return behind if len(behind) < len(beats) else []


def time_stuck(paces: Mapping[int, Pace]) -> float:
    """Return for how many seconds the run has been stuck. It is the longer of two times: how long no rank has made
    progress, and how long the most silent rank has written no heartbeat."""
    return max(min(pace.idle_s for pace in paces.values()), max(pace.silent_s for pace in paces.values()))


def describe_stuck(paces: Mapping[int, Pace], nodes: Mapping[int, str]) -> str:
    """Return a sentence on the ranks that make no progress: their node, their step, for how long, and which ranks wait
    for them. `nodes`: a dict from each rank to a text that names its node."""
    stuck = find_stuck(paces)
    beats = {rank: pace.beat for rank, pace in paces.items() if pace.beat is not None}
    idle_s = time_stuck(paces)
    waiting = [rank for rank, beat in beats.items() if rank not in stuck and beat.collective]
    rest = ""
    if waiting:
        first = beats[waiting[0]]
        place = f"step {first.step}, {first.collective}" if first.step else f"before the first step, {first.collective}"
        rest = f"; {_ranks(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in {place}"
    if not stuck:
        return f"no rank made progress for {idle_s:.0f} s{rest}"
    where = f" ({nodes[stuck[0]]})" if stuck[0] in nodes else ""
    beat, is_silent = beats[stuck[0]], paces[stuck[0]].silent_s > min(SILENT_S, paces[stuck[0]].end_s / 2)
    what = "did not answer" if is_silent else "made no progress"
    at = f" in step {beat.step}" if beat.step else ""
    return f"{_ranks(stuck)}{where} {what}{at} for {idle_s:.0f} s{rest}"


def _ranks(numbers: Sequence[int]) -> str:
    return f"{'ranks' if len(numbers) > 1 else 'rank'} {in_ranges(sorted(numbers))}"
