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
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from declarative_train.app.records.record import read_record
from declarative_train.planner.calibration import write_calibration
from declarative_train.tools.calibrate.measure import measure_machine
from tests.planner.cells import WAYS, Cell
from tests.planner.shipped import ROOT, shipped

PAGE = ROOT / "docs" / "planner-times.md"
HEADING, NEXT = "## Our engine on a CPU", "## What is not known"
STEPS, LIMIT_S = 12, 120
PER_CALIBRATION = 4  # runs between two calibrations: the load of the machine changes
MOST_RANKS = 2
TEXT = """{heading}

Steps of the shipped recipes on as many ranks as they name, and of the modes on two ranks, in fp32: the median of
{steps} steps, compared with the prediction after `dtrain calibrate -o FILE`, which was repeated after every {per} runs.
Taken on {date}, on {cores} cores with a load of {load:.1f} at the end. The median of predicted / measured is
{middle:.2f}; half of the rows are between {low:.2f} and {high:.2f}. `make planner` runs this again, on a quiet machine.
The model is for GPUs: on a CPU it is too fast, most of all for short steps of two ranks, which take milliseconds to
meet.

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
                yield Job(f"{model}, {way}", path, num_ranks)
    for each in shipped():
        if any(word not in each.name for word in words):
            continue
        layout = each.plan().layout
        if layout.num_devices <= MOST_RANKS and layout.hardware is None:
            switches = tuple(word for path in each.switches for word in ("--with", str(path)))
            yield Job(each.name, each.path, layout.num_devices, switches)


def measure(job: Job, calibration: Path, folder: Path) -> Timed | None:
    """Return the step of a run; None if it did not come to an end in time."""
    runs = folder / "runs" / re.sub(r"\W", "-", job.name)
    settings = {"layout.calibration": calibration, "logging.every": "1 step"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "declarative_train", "run", str(job.recipe), "--max-steps", str(STEPS), "--quiet"]
    command += ["--run-dir", str(runs)]
    try:
        subprocess.run([*command, *job.options, *words], cwd=ROOT, timeout=LIMIT_S, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return None
    record = read_record(str(runs))
    if record is None or record.step_s is None or record.predicted_step_s is None:
        return None
    return Timed(job.name, job.num_ranks, record.predicted_step_s, record.step_s)


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
    ratios = [each.ratio for each in found]
    low, high = np.quantile(ratios, (0.25, 0.75))
    rows = (
        f"| {each.name} | {each.num_ranks} | {each.predicted_s * 1e3:.3g} ms | {each.measured_s * 1e3:.3g} ms | "
        f"{each.ratio:.2f} |"
        for each in found
    )
    return TEXT.format(
        heading=HEADING,
        steps=STEPS,
        per=PER_CALIBRATION,
        date=date.today(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        middle=median(ratios),
        low=low,
        high=high,
        rows="\n".join(rows),
    )


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
