"""Modes compared: the same model and batch on two ranks in each mode, and in one process. Rounds are interleaved;
figures are medians.

    python -m benchmarks.modes [--rounds 3] [--write]

The table shows by how much ddp is faster than dp. On the CPU the copies of `dp` share the parameters and run one after
the other. The ranks of `ddp` have their own copies, and exchange only gradients.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.__main__ import Job, ours
from benchmarks.cases import CASES
from benchmarks.report import write_table

CASE = "gpt_4x128"
JOBS = [
    Job(CASE, "single", 1, "single", 1),
    Job(CASE, "dp", 2, "dp", 1),
    Job(CASE, "ddp", 2, "ddp", 1),
    Job(CASE, "fsdp", 2, "fsdp", 1),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the table in docs/performance.md")
    args = parser.parse_args()
    case = CASES[CASE]
    steps: dict[str, list[float]] = {job.mode: [] for job in JOBS}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        case.make_data(data)
        for number in range(args.rounds):
            for job in JOBS:
                found = ours(job, case, data, Path(folder) / f"{job.mode}_{number}")
                steps[job.mode].append(found.step_s)
                print(f"round {number + 1}: {job.mode} {found.step_s * 1e3:.1f} ms a step", flush=True)
    table = "\n".join(lines(steps, args.rounds))
    print(table)
    if args.write:
        write_table("benchmarks.modes", table)


def lines(steps: dict[str, list[float]], rounds: int) -> list[str]:
    import torch

    found = [
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"one thread per rank; {CASE}, medians of {rounds} interleaved rounds.",
        "",
        "| mode | ranks or copies | step, ms |",
        "|---|---|---|",
    ]
    for job in JOBS:
        found.append(f"| {job.mode} | {job.gpus} | {median(steps[job.mode]) * 1e3:.1f} |")
    return found


if __name__ == "__main__":
    main()
