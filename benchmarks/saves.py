"""Time for which a save in the background stops training: that of `Checkpoints.save`, in one process on the CPU.

    python -m benchmarks.saves [--rounds 7] [--check] [--write]

It is compared with a copy of the same tensors into memory that is in use already (aim: at most 1.3 times as long). It
is also compared with torch's `async_save` (aim: not longer), whose thread writes without checksums. Each round has all
three, one after the other; figures are medians of ratios. As root, the benchmark gets priority over other processes, so
that their work is not measured on a busy machine. With --check, the exit code is 1 if a ratio is above its aim.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml
from torch import distributed
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.report import write_table
from declarative_train import recipe as recipe_room
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.engine import Engine
from declarative_train.engine.step.model_preparation import fill
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.run.checkpoint import Checkpoints
from declarative_train.run.run_state import RunState

COPY_AIM, TORCH_AIM = 1.3, 1.0
NUM_LAYERS, WIDTH = 48, 1024
RECIPE: dict[str, Any] = {
    "name": "saves",
    "data": {
        "source": {"type": "synthetic", "kind": "regression", "rows": 64},
        "fields": {"x": {"column": "x"}, "y": {"columns": ["y"]}},
    },
    "model": {
        "graph": {
            "first": {"type": "linear", "out_features": WIDTH, "input": "x"},
            **{f"h{each}": {"type": "linear", "out_features": WIDTH} for each in range(NUM_LAYERS)},
            "out": {"type": "linear", "out_features": 1},
        }
    },
    "objective": {"loss": {"type": "mse", "input": "out", "target": "y"}},
    "training": {"steps": 10, "global_batch_size": 8, "optimizer": {"type": "sgd", "lr": 0.001}},
    "checkpoint": {"every": "1 step"},
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.saves", description="How long a save stops training.")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default: 7)")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a ratio is over its aim")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/performance.md")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with suppress(AttributeError, PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    with tempfile.TemporaryDirectory() as folder:
        num_bytes, rounds = measure(Path(folder), args.rounds)
    lines = table(num_bytes, rounds, load)
    print("\n".join(lines))
    if args.write:
        write_table("benchmarks.saves", "\n".join(lines))
    to_copy, to_torch = ratios(rounds)
    return 1 if args.check and (to_copy > COPY_AIM or to_torch > TORCH_AIM) else 0


Round = tuple[float, float, float]  # seconds of save, copy, async_save


def measure(folder: Path, num_rounds: int) -> tuple[int, list[Round]]:
    """Return the size of a checkpoint in bytes, and the times of each round. A first round is not counted."""
    torch.set_num_threads(1)
    # `async_save` needs a process group
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    recipe = folder / "saves.yaml"
    recipe.write_text(yaml.safe_dump(RECIPE | {"logging": {"dir": str(folder / "runs")}}), "utf-8")
    loaded = recipe_room.load(str(recipe))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is not None, diagnostics
    engine = Engine(plan, torch.device("cpu"), fill=fill)
    tensors = {name: item.detach() for name, item in engine.model.named_parameters()}
    kept = {name: item.clone() for name, item in tensors.items()}
    checkpoints = Checkpoints(plan, engine, CheckpointStore(str(folder / "checkpoints")))
    found = []
    for number in range(num_rounds + 1):

        def save(step: int = number) -> None:
            checkpoints.save(RunState(step=step + 1), is_best=False, keep=1)

        def copy() -> None:
            for name, item in tensors.items():
                kept[name].copy_(item)

        save_s = timed(save)
        checkpoints.wait()
        copy_s = timed(copy)
        theirs = folder / f"theirs_{number}"
        started: list[Any] = []

        def save_by_torch(into: list[Any] = started, path: str = str(theirs)) -> None:
            into.append(async_save(tensors, checkpoint_id=path))

        torch_s = timed(save_by_torch)
        started[0].result()
        shutil.rmtree(theirs)
        found.append((save_s, copy_s, torch_s))
    return sum(item.nbytes for item in tensors.values()), found[1:]


def timed(call: Callable[[], None]) -> float:
    begun_s = time.perf_counter()
    call()
    return time.perf_counter() - begun_s


def ratios(rounds: list[Round]) -> tuple[float, float]:
    return median(save / copy for save, copy, _ in rounds), median(save / theirs for save, _, theirs in rounds)


def table(num_bytes: int, rounds: list[Round], load: float) -> list[str]:
    save_ms, copy_ms, torch_ms = (median(column) * 1e3 for column in zip(*rounds, strict=True))
    to_copy, to_torch = ratios(rounds)
    return [
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, one thread; "
        f"{num_bytes / 1e6:.0f} MB;",
        f"medians of {len(rounds)} rounds. Load of the machine before: {load:.1f}.",
        "",
        "| | ms | save in the background / this |",
        "|---|---|---|",
        f"| a save in the background | {save_ms:.0f} | |",
        f"| a copy into memory in use | {copy_ms:.0f} | {to_copy:.2f} |",
        f"| torch's `async_save` | {torch_ms:.0f} | {to_torch:.2f} |",
    ]


if __name__ == "__main__":
    sys.exit(main())
