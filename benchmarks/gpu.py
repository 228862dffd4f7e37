"""`make bench-gpu`: a training step of dtrain compared with one written by hand, on one GPU. Without a GPU, only a
message is printed.

    python -m benchmarks.gpu [--rounds 2] [--seconds 400] [--only JOB ...] [--write]

The models are GPT-2 124M, a Llama of 1.5 billion parameters and a ResNet-50, in bf16, each compiled and not compiled.
Both sides have the same sizes, batches that are on the device already, and a fused optimizer. Each variant is a process
of its own, and the sides take turns. The side by hand uses `torch.autocast`, and `torch.compile` of the whole model.
The side of dtrain is the engine of `dtrain run`, with the time and memory that its plan predicted; the loop around the
engine, which logs and saves, is not part of it (`make bench` measures the loop). DTRAIN_BENCH_DEVICE=cpu tries this
program with tiny models, whose figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu_models import Job, by_hand, jobs, recipe, write_data
from benchmarks.report import write_table
from tests.gpu.needs import missing, what_to_do

NO_GPU = "no GPU here: nothing was timed (DTRAIN_BENCH_DEVICE=cpu tries the program itself on the CPU)"
KIND = os.environ.get("DTRAIN_BENCH_DEVICE", "cuda")
TINY = KIND == "cpu"
WARM_UP, STEPS = (1, 2) if TINY else (15, 45)
LIMIT_S = 200  # seconds for one variant
BUDGET_S = 400.0  # seconds after which no variant is begun, so that all end within 8 minutes on an H100
Result = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Our step and a hand-written one.")
    parser.add_argument("--rounds", type=int, default=1 if TINY else 2, help="turns of both sides (default: 2)")
    parser.add_argument("--seconds", type=float, default=BUDGET_S, help="then nothing new is begun (default: 400)")
    parser.add_argument("--only", nargs="*", help="jobs by name")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    if not _has_device():
        print(NO_GPU)
        return
    if lacking := missing():
        sys.exit(what_to_do(lacking))
    begun_s = time.monotonic()
    lines: list[str] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs(TINY):
            if args.only and job.name not in args.only:
                continue
            data = Path(folder) / f"{job.name}.npz"
            write_data(job, data)
            for compiled in (False, True):
                if lines and time.monotonic() - begun_s > args.seconds:
                    lines.append(_row_without(job, compiled, "left out: time"))
                else:
                    try:
                        lines.append(_row(job, compiled, data, args.rounds, begun_s + args.seconds))
                    except VariantError as failure:  # the other variants still get their rows
                        failures.append(str(failure))
                        lines.append(_row_without(job, compiled, failure.word))
                print(lines[-1], flush=True)
            data.unlink()
    table = "\n".join([*_header(args.rounds), *lines])
    print(f"\n{table}")
    if args.write:
        write_table("make bench-gpu", table)
    if failures:
        sys.exit("\n\n".join(failures))


def _has_device() -> bool:
    if TINY:
        return True
    import torch

    return torch.cuda.is_available()


class VariantError(Exception):
    """Error: a variant gave no figures. `word`: text for its row of the table."""

    def __init__(self, word: str, message: str) -> None:
        super().__init__(message)
        self.word = word


def _row_without(job: Job, compiled: bool, word: str) -> str:
    return f"| {job.name}{', compiled' if compiled else ''} | {word} | | | | | |"


def _row(job: Job, compiled: bool, data: Path, rounds: int, until_s: float) -> str:
    """Measure one job, and return its row of the table. There are at most `rounds` rounds; another one is begun only if
    it would end by `until_s`."""
    pairs: list[list[Result]] = []
    while len(pairs) < rounds:
        begun_s = time.monotonic()
        pairs.append([_measured(job, side, compiled, data) for side in ("ours", "by_hand")])
        now_s = time.monotonic()
        if now_s + 2 * (now_s - begun_s) > until_s:
            break
    ours, hand = (median(pair[side]["step_s"] for pair in pairs) for side in (0, 1))
    ratio = median(pair[1]["step_s"] / pair[0]["step_s"] for pair in pairs)
    first, other = pairs[0]
    speed = [job.rows * job.units_per_row / seconds for seconds in (ours, hand)]
    cells = [
        f"{job.name}{', compiled' if compiled else ''}",
        f"{ratio:.2f}: {speed[0]:,.0f} / {speed[1]:,.0f} {job.unit}/s",
        "-" if not first["rows_per_s_at_peak"] else f"{job.rows / ours / first['rows_per_s_at_peak']:.1%}",
        f"{_gigabytes(first['peak_bytes'])} / {_gigabytes(other['peak_bytes'])}",
        _predicted(first["predicted_s"], ours, 1e3, "ms"),
        _predicted(first["predicted_bytes"], first["peak_bytes"], 1e-9, "GB"),
        f"{first['first_s']:.1f} / {other['first_s']:.1f} s",
    ]
    return f"| {' | '.join(cells)} |"


def _gigabytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else f"{num_bytes / 1e9:.2f} GB"


def _predicted(predicted: float | None, measured: float | None, scale: float, unit: str) -> str:
    if predicted is None or not measured:
        return "-"
    return f"{predicted / measured:.2f}: {predicted * scale:.2f} / {measured * scale:.2f} {unit}"


def _header(rounds: int) -> list[str]:
    import torch

    name = "cpu, tiny models" if TINY else torch.cuda.get_device_name(0)
    return [
        f"{date.today()}, torch {torch.__version__}, {name}; bf16; medians of {rounds} rounds of {STEPS} steps after "
        f"{WARM_UP}. Throughput: ours / by hand, the ratio first. Predicted: the plan / measured, the ratio first.",
        "",
        "| job | throughput | MFU | peak memory | predicted step | predicted memory | first step |",
        "|---|---|---|---|---|---|---|",
    ]


def _measured(job: Job, side: str, compiled: bool, data: Path) -> Result:
    command = [sys.executable, "-m", "benchmarks.gpu_step", job.name, side, str(int(compiled)), str(data)]
    words = " ".join(command[1:])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise VariantError(f"{side}: over {LIMIT_S} s", f"{words} did not end within {LIMIT_S} s") from None
    if done.returncode:
        end = f"{done.stdout[-1000:]}\n{done.stderr[-3000:]}"
        raise VariantError(f"{side}: failed", f"{words} failed with {done.returncode}:\n{end}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def timed(step: Callable[[], object]) -> Result:
    """Run a step many times. Return the time of the first step, the mean time after the warm-up, and the peak memory
    after the warm-up."""
    import torch

    begun = time.perf_counter()
    step()
    _wait()
    first_s = time.perf_counter() - begun
    for _ in range(WARM_UP):
        step()
    _wait()
    if not TINY:
        torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    _wait()
    seconds = (time.perf_counter() - begun) / STEPS
    return {"step_s": seconds, "first_s": first_s, "peak_bytes": None if TINY else torch.cuda.max_memory_allocated()}


def _wait() -> None:
    import torch

    if not TINY:
        torch.cuda.synchronize()


def ours(job: Job, compiled: bool, data: Path) -> Result:
    import torch
    import yaml

    from declarative_train import recipe as recipe_room
    from declarative_train.app.api.tracer import LateTracer
    from declarative_train.components.hardware import hardware_of_device
    from declarative_train.data.rank_batches import TrainingBatches
    from declarative_train.data.tensor_sets import open_sets
    from declarative_train.engine.engine import Engine, get_process_batch
    from declarative_train.planner.compiler import compile as compile_plan
    from declarative_train.run.meter import samples_per_s_at_peak
    from declarative_train.run.rank import torch_settings

    path = data.with_suffix(".yaml")
    hardware = None if TINY else hardware_of_device(torch.cuda.get_device_name(0))  # for the predictions
    layout = {"device": KIND} | ({} if hardware is None else {"hardware": hardware.name})
    path.write_text(yaml.safe_dump(recipe(job, data, compiled=compiled, layout=layout)))
    loaded = recipe_room.load(str(path))
    assert loaded.recipe is not None, [item.message for item in loaded.diagnostics]
    plan, diagnostics = compile_plan(loaded.recipe, tracer=LateTracer(), traces_all=True)
    assert plan is not None, [item.message for item in diagnostics]
    device = torch.device("cpu" if TINY else "cuda:0")
    with torch_settings(plan, device):
        engine = Engine(plan, device)
        training = TrainingBatches(
            plan.data, get_process_batch(plan), 0, open_sets(plan.data), device=device, hold_on_device=True
        )
        steps = enumerate(training.iterate(1, WARM_UP + STEPS + 1), 1)

        def step() -> None:
            number, batches = next(steps)
            engine.step(number, batches, num_rows=job.rows, lr_factor=1.0, measure=False)

        found = timed(step)
    return {
        **found,
        "rows_per_s_at_peak": samples_per_s_at_peak(plan, device),
        "predicted_s": None if plan.estimate is None else plan.estimate.step_s,
        "predicted_bytes": None if plan.estimate is None else plan.estimate.memory_bytes,
    }


def theirs(job: Job, compiled: bool, data: Path) -> Result:
    import numpy as np
    import torch
    from torch.nn import functional as F

    device = torch.device("cpu" if TINY else "cuda:0")
    loaded = np.load(data)
    x, y = (torch.from_numpy(loaded[name]).to(device) for name in "xy")
    torch.manual_seed(0)
    whole = by_hand(job).to(device)
    if job.unit == "images":
        x = x.to(memory_format=torch.channels_last)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(
            whole.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True
        )
    else:
        optimizer = torch.optim.AdamW(whole.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    model = torch.compile(whole) if compiled else whole
    state = {"step": 0}

    def step() -> None:
        rows = torch.randint(len(x), (job.rows,), device=device)
        state["step"] += 1
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(x[rows])
        F.cross_entropy(logits.float().flatten(0, -2), y[rows].flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return timed(step)


if __name__ == "__main__":
    main()
