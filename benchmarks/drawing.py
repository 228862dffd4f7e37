"""Time that a rank takes to draw its initial values: of 100 million parameters, over 1, 2 and 4 ranks of fsdp.

    python -m benchmarks.drawing [--rounds 3] [--write]

Every rank draws its own rows, in float32, on one thread. CPU time is measured, because ranks wait for each other if
there are more ranks than cores. The exit code is 1 if the time of a rank does not fall with the number of ranks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import tempfile
import time
from datetime import date
from itertools import pairwise
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from statistics import median

from benchmarks.report import write_table
from declarative_train import recipe as recipe_room
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan

RANKS = (1, 2, 4)
RECIPE = """
name: drawing
data:
  source: {{type: synthetic, kind: tokens, rows: 4000}}
  window: {{length: 65, stride: 64}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model: {{graph: {{logits: {{type: gpt, vocabulary: 256, layers: 14, width: 768, heads: 12, input: tokens}}}}}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next}}}}
training: {{steps: 1, global_batch_size: 4, optimizer: {{type: adamw, lr: 1e-4}}}}
parallelism: {mode}
layout: {{gpus: {ranks}, device: cpu}}
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the table in docs/performance.md")
    args = parser.parse_args()
    plans = {ranks: plan_over(ranks) for ranks in RANKS}
    found: dict[int, list[float]] = {ranks: [] for ranks in RANKS}
    load = os.getloadavg()[0]
    for _ in range(args.rounds):
        for ranks, plan in plans.items():
            found[ranks].append(slowest(plan, ranks))
    table = "\n".join(lines(plans[1], found, args.rounds, load))
    print(table)
    if args.write:
        write_table("benchmarks.drawing", table)
    processor = [median(found[ranks]) for ranks in RANKS]
    return int(any(after >= before for before, after in pairwise(processor)))


def plan_over(ranks: int) -> Plan:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "drawing.yaml"
        path.write_text(RECIPE.format(mode="single" if ranks == 1 else "fsdp", ranks=ranks))
        recipe = recipe_room.load(str(path)).recipe
        assert recipe is not None
        plan, diagnostics = compile_plan(recipe)
        assert plan is not None, diagnostics
        return plan


def slowest(plan: Plan, ranks: int) -> float:
    """Return the CPU time of the slowest rank, in seconds."""
    context = multiprocessing.get_context("fork")
    answers: SimpleQueue[float] = context.SimpleQueue()
    ready = context.Barrier(ranks)
    processes = [context.Process(target=draw, args=(plan, rank, ready, answers)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=300)
    return max(answers.get() for _ in processes)


def draw(plan: Plan, rank: int, ready: object, answers: SimpleQueue[float]) -> None:
    """Draw the initial values of one rank, in a fake process group: no message is needed. Put the CPU time into
    `answers`."""
    import torch
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from declarative_train.engine.engine import Engine
    from declarative_train.engine.step import model_preparation as model

    torch.set_num_threads(1)
    if len(plan.layout.ranks) > 1:
        distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=len(plan.layout.ranks))

    def timed(held: model.BuiltModel, plan: Plan, device: torch.device) -> None:
        model.allocate(held, plan, device)
        ready.wait(timeout=120)  # type: ignore[attr-defined]
        before = time.process_time()
        model.fill(held, plan, device)
        answers.put(time.process_time() - before)

    Engine(plan, torch.device("cpu"), fill=timed)
    os._exit(0)  # a fake process group has nothing to clean up


def lines(plan: Plan, found: dict[int, list[float]], rounds: int, load: float) -> list[str]:
    import torch

    number = sum(item.num_elements for item in plan.parameters)
    head = (
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"one thread per rank; {number / 1e6:.0f} M start values; medians of {rounds} interleaved rounds, "
        "of the slowest rank. "
        f"Load of the machine before: {load:.1f}."
    )
    rows = [f"| {ranks} | {median(times):.2f} s |" for ranks, times in found.items()]
    return [head, "", "| ranks | CPU time |", "|---|---|", *rows]


if __name__ == "__main__":
    raise SystemExit(main())
