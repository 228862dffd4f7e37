"""Step times on this CPU: predicted after a calibration, and measured by runs of the shipped recipes and of the modes.

python -m tests.planner.cpu_times [WORDS...]   run those whose name contains the words; without words, also write the
                                               section of docs/planner-times.md
A busy machine is refused: its steps take several times as long as the short measurements of a calibration, which run
between other processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from math import log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from declarative_train.app.records.record import read_record
from declarative_train.core.names import EVENTS
from declarative_train.planner.calibration import write_calibration
from declarative_train.run.event import StepDone
from declarative_train.run.sinks.jsonl import read_events
from declarative_train.tools.calibrate.measure import measure_machine
from tests.planner.cells import WAYS, Cell
from tests.planner.shipped import ROOT, shipped

PAGE = ROOT / "docs" / "planner-times.md"
HEADING, NEXT = "## Our engine on a CPU", "## What is not known"
STEPS, EVERY, LIMIT_S = 40, 4, 120
PER_CALIBRATION = 20  # runs between two calibrations: the speed of a virtual machine changes
SETTINGS = {"logging.every": f"{EVERY} steps", "logging.sinks": "{csv: {}}"}
NEAR = (0.7, 1.4)
FURTHEST = 5  # rows that the text names
MOST_RANKS = 2
TEXT = """{heading}

The runs are the shipped recipes, on as many ranks as they name, and a llama and a ViT in every mode for at most two
ranks. *Measured* is the median of the second half of {steps} steps, logged in groups of {every}. *Predicted* is the
prediction after `dtrain calibrate -o FILE`, which was repeated after every {per} runs. Measured on {date}, on {cores}
cores with a load of {load:.1f} at the end. `make planner` runs this again, on a quiet machine.

| | rows | median of predicted / measured | half of the rows |
|---|---|---|---|
{parts}

{near} of {all} rows are between {least} and {most}. Furthest off: {furthest}.

| | ranks | predicted | measured | predicted / measured |
|---|---|---|---|---|
{rows}

"""


@dataclass(frozen=True, slots=True)
class Timed:
    """Step of one run, in seconds."""

    name: str
    num_ranks: int
    predicted_s: float
    measured_s: float

    @property
    def ratio(self) -> float:
        return self.predicted_s / self.measured_s


@dataclass(frozen=True, slots=True)
class Job:
    """Recipe to run, with its options."""

    name: str
    recipe: Path
    num_ranks: int
    options: tuple[str, ...] = ()


def jobs(folder: Path, words: list[str]) -> Iterator[Job]:
    """Yield the runs whose names contain the words. `folder`: for files of data and recipes."""
    random = np.random.default_rng(5)
    np.savez(folder / "data.npz", x=random.random((64, 3, 16, 16), dtype=np.float32), y=random.integers(0, 10, 64))
    for model in ("llama", "vit"):
        for way, (_, num_ranks) in WAYS.items():
            if num_ranks <= MOST_RANKS and all(word in f"{model}, {way}" for word in words):
                path = folder / f"{model}-{way.replace(' ', '-')}.yaml"
                text = Cell(model, way, "fp32", "none").recipe(str(folder / "data.npz"), str(folder / "runs"))
                path.write_text(text.replace("steps: 4", "steps: 100"))
                yield Job(f"{model}, {way}", path, 1 if way == "dp 2" else num_ranks)  # one process
    for each in shipped():
        if any(word not in each.name for word in words):
            continue
        layout = each.plan().layout
        if layout.num_devices <= MOST_RANKS and layout.hardware is None:
            switches = tuple(word for path in each.switches for word in ("--with", str(path)))
            yield Job(each.name, each.path, 1 if layout.is_one_process else layout.num_devices, switches)


def measure(job: Job, calibration: Path, folder: Path) -> Timed | None:
    """Return the step of a run; None if it did not come to an end in time."""
    runs = folder / "runs" / re.sub(r"\W", "-", job.name)
    settings = {"layout.calibration": calibration, **SETTINGS}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "declarative_train", "run", str(job.recipe), "--max-steps", str(STEPS), "--quiet"]
    command += ["--run-dir", str(runs)]
    try:
        subprocess.run([*command, *job.options, *words], cwd=ROOT, timeout=LIMIT_S, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return None
    record = read_record(str(runs))
    if record is None or record.predicted_step_s is None:
        return None
    times = [event.step_s for event in read_events(runs / EVENTS) if isinstance(event, StepDone)]
    late = [each for each in times[len(times) // 2 :] if each is not None]
    return Timed(job.name, job.num_ranks, record.predicted_step_s, median(late)) if late else None


def measure_all(words: list[str]) -> list[Timed]:
    found: list[Timed] = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        calibrations: dict[int, Path] = {}
        for at, job in enumerate(jobs(folder, words)):
            if at % PER_CALIBRATION == 0:
                calibrations.clear()
            if job.num_ranks not in calibrations:
                calibrations[job.num_ranks] = folder / f"cpu-{job.num_ranks}.json"
                write_calibration(calibrations[job.num_ranks], measure_machine(job.num_ranks), "this machine")
            timed = measure(job, calibrations[job.num_ranks], folder)
            print(f"{job.name}: " + ("no time" if timed is None else f"{timed.ratio:.2f}"), flush=True)
            if timed is not None:
                found.append(timed)
    return found


def part(found: list[Timed]) -> str:
    """Return the section of docs/planner-times.md."""
    kinds = {
        "all": found,
        "one rank": [each for each in found if each.num_ranks == 1],
        "two ranks": [each for each in found if each.num_ranks == 2],
    }
    near = sum(NEAR[0] <= each.ratio <= NEAR[1] for each in found)
    furthest = sorted(found, key=lambda each: -abs(log(each.ratio)))[:FURTHEST]
    rows = (
        f"| {each.name} | {each.num_ranks} | {each.predicted_s * 1e3:.3g} ms | {each.measured_s * 1e3:.3g} ms | "
        f"{each.ratio:.2f} |"
        for each in found
    )
    return TEXT.format(
        heading=HEADING,
        steps=STEPS,
        every=EVERY,
        per=PER_CALIBRATION,
        date=date.today(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        parts="\n".join(_spread(name, [each.ratio for each in part]) for name, part in kinds.items() if part),
        near=near,
        all=len(found),
        least=NEAR[0],
        most=NEAR[1],
        furthest=", ".join(f"{each.name} ({each.ratio:.2f})" for each in furthest),
        rows="\n".join(rows),
    )


def _spread(name: str, ratios: list[float]) -> str:
    low, high = np.quantile(ratios, (0.25, 0.75))
    return f"| {name} | {len(ratios)} | {median(ratios):.2f} | {low:.2f} to {high:.2f} |"


def with_part(page: str, text: str) -> str:
    """Return the page with this section in place of the one that it has."""
    before, _, after = page.partition(NEXT)
    return before.partition(HEADING)[0] + text + NEXT + after


def part_of(page: str) -> str:
    """Return the section that a page has, "" if none."""
    _, heading, rest = page.partition(NEXT)[0].partition(HEADING)
    return heading + rest


def main(words: list[str]) -> int:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        print(f"the machine is busy (load {load:.1f} on {cores} cores): CPU step times are not measured")
        return 0
    found = measure_all(words)
    if found and not words:
        PAGE.write_text(with_part(PAGE.read_text(), part(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
