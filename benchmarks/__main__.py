"""`make bench`: dtrain compared with the loop that people write by hand. The runs of both are interleaved; figures are
medians of ratios.

    python -m benchmarks [--rounds 5] [--only NAME ...] [--write]

Both sides read the same file, and train the same model with the same optimizer and batch size. They log to TensorBoard
every 10 steps, and save a checkpoint about once a second, on CPU with one thread per rank. There are three ratios of
dtrain's time to that of the other loop: `step`, seconds per optimizer step after the first; `start`, from command to
first optimizer step; `whole`, from command to exit. The modules of dtrain are compiled to bytecode before, as pip does
when it installs a package.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import declarative_train
from benchmarks.cases import CASES, Case
from benchmarks.first_step import NAME
from benchmarks.report import write_table

MOST_STEP_TABLES, MOST_STEP, MOST_START = 0.8, 1.0, 1.0  # targets: largest ratios to the loop by hand


@dataclass(frozen=True, slots=True)
class Job:
    """Training of one case in one mode. `num_epochs` is large, so that one-time work, such as imports during the first
    steps, is a small part of the time."""

    case: str
    mode: str
    gpus: int
    parallelism: str
    num_epochs: int


JOBS = (
    Job("mlp_10000x20", "single", 1, "single", 320),
    Job("mlp_10000x20", "ddp", 2, "ddp", 80),
    Job("mlp_1000x10", "single", 1, "single", 3200),
    Job("cnn_3x32x32", "single", 1, "single", 16),
    Job("cnn_3x32x32", "ddp", 2, "ddp", 16),
    Job("resnet18_3x32x32", "single", 1, "single", 3),
    Job("resnet18_3x32x32", "ddp", 2, "ddp", 3),
    Job("gpt_4x128", "single", 1, "single", 4),
    Job("gpt_4x128", "ddp", 2, "ddp", 4),
    Job("gpt_4x128", "fsdp", 2, "fsdp", 4),
    Job(
        "gpt_4x128",
        "pipeline",
        2,
        "{pipeline: {stages: 2, schedule: 1f1b, microbatches: 4, cut_before: [layers.2]}}",
        4,
    ),
)


@dataclass(frozen=True, slots=True)
class Times:
    start_s: float
    step_s: float
    whole_s: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Our loop and a hand-written one.")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds per job (default: 5)")
    parser.add_argument("--only", nargs="*", help="jobs, as CASE or CASE/MODE")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    jobs = [job for job in JOBS if not args.only or {job.case, f"{job.case}/{job.mode}"} & set(args.only)]
    compile_to_bytecode()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            rows.append(measure(job, args.rounds, Path(folder)))
            print(rows[-1], flush=True)
    table = "\n".join([*header(args.rounds), *rows, "", describe_missed(rows)])
    print(f"\n{table}")
    if args.write:
        write_table("make bench", table)


def describe_missed(rows: list[str]) -> str:
    """Return a sentence that names each row of the table whose step time or start time misses its target."""
    missed = []
    for row in rows:
        case, mode, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        most_step = MOST_STEP_TABLES if case.startswith("mlp") else MOST_STEP
        targets = (("step", cells[2], most_step), ("start", cells[4], MOST_START))
        missed += [f"{what} of {case} {mode} ({ratio})" for what, ratio, most in targets if float(ratio) > most]
    return f"Targets that are missed: {', '.join(missed) or 'none'}."


def compile_to_bytecode() -> None:
    """Compile the package and the benchmarks to bytecode. With PYTHONDONTWRITEBYTECODE, Python would otherwise compile
    them at each start, but not torch."""
    for package in (Path(declarative_train.__file__).parent, Path(__file__).parent):
        compileall.compile_dir(package, quiet=1)


def measure(job: Job, rounds: int, folder: Path) -> str:
    case = CASES[job.case]
    data = folder / f"{case.name}.npz"
    if not data.exists():
        case.make_data(data)
    pairs = []
    for turn in range(rounds):
        place = folder / f"{job.case}_{job.mode}_{turn}"
        pairs.append((by_hand(job, data, place / "by_hand"), ours(job, case, data, place / "ours")))
    cells = [f"{job.case}", job.mode, str(job.gpus)]
    for attribute in ("step_s", "start_s", "whole_s"):
        our = median(getattr(pair[1], attribute) for pair in pairs)
        ratio = median(getattr(pair[1], attribute) / getattr(pair[0], attribute) for pair in pairs)
        cells += [f"{our * (1e3 if attribute == 'step_s' else 1):.2f}", f"{ratio:.2f}"]
    return f"| {' | '.join(cells)} |"


def by_hand(job: Job, data: Path, out: Path) -> Times:
    out.mkdir(parents=True)
    words = ["-m", "benchmarks.by_hand", job.case, job.mode, str(job.num_epochs), str(data), str(out)]
    if job.gpus == 1:
        command = [sys.executable, *words]
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(job.gpus), *words]
    began = time.time()
    result = execute(command)
    ended = time.time()
    found = json.loads(result.strip().splitlines()[-1])
    return Times(
        found["first_s"] - began, (found["last_s"] - found["first_s"]) / (found["num_steps"] - 1), ended - began
    )


def ours(job: Job, case: Case, data: Path, out: Path) -> Times:
    out.mkdir(parents=True)
    recipe = out / "recipe.yaml"
    values = {
        "name": case.name,
        "data": data,
        "runs": out,
        "parallelism": job.parallelism,
        "gpus": job.gpus,
        "batch_size": case.batch_size,
        "epochs": job.num_epochs,
        "save_every": case.save_every,
    }
    recipe.write_text(case.recipe.format(**values))
    began = time.time()
    execute([sys.executable, "-m", "benchmarks.first_step", "run", str(recipe)])
    ended = time.time()
    (log,) = out.rglob("events.jsonl")
    events = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [event for event in events if event["event"] == "StepDone"]
    first, last = steps[0], steps[-1]
    per_step = (last["time_unix_s"] - first["time_unix_s"]) / (last["step"] - first["step"])
    return Times(float(log.with_name(NAME).read_text()) - began, per_step, ended - began)


def execute(command: list[str]) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if result.returncode:
        sys.exit(f"{' '.join(command)} failed with {result.returncode}:\n{result.stdout}\n{result.stderr}")
    return result.stdout


def header(rounds: int) -> list[str]:
    import torch

    return [
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"one thread per rank; medians of {rounds} interleaved rounds.",
        "",
        "| job | mode | ranks | step, ms | step / by hand | start, s | start / by hand | whole, s | whole / by hand |",
        "|---|---|---|---|---|---|---|---|---|",
    ]


if __name__ == "__main__":
    main()
