"""Steps of the `tensor` axis compared with those of torch's `parallelize_module`: the same model and batch, on two
ranks.

    python -m benchmarks.tensor [--steps 60] [--write]

The same two processes have both models, and run their steps in turn, so that other work on the machine slows both down
alike. The figures are medians of the wall-clock time, of the CPU time of rank 0, and of their ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from statistics import median

from benchmarks.__main__ import execute
from benchmarks.by_hand import wrapped
from benchmarks.cases import CASES
from benchmarks.report import write_table

CASE = CASES["gpt_4x128"]
WARM = 3  # steps that are not counted
Steps = dict[str, list[tuple[float, float]]]  # wall-clock seconds, CPU seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="keep the table in docs/performance.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        CASE.make_data(Path(folder) / "data.npz")
        words = ["-m", "benchmarks.tensor", "rank", folder, str(args.steps)]
        found = execute([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *words])
    table = "\n".join(lines(json.loads(found.strip().splitlines()[-1])))
    print(table)
    if args.write:
        write_table("benchmarks.tensor", table)


def run_rank(folder: Path, num_steps: int) -> None:
    import torch
    from torch import distributed

    from declarative_train import recipe as recipe_room
    from declarative_train.data.rank_batches import TrainingBatches
    from declarative_train.data.tensor_sets import open_sets
    from declarative_train.engine.engine import Engine, get_process_batch
    from declarative_train.planner.compiler import compile as compile_plan

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    place = folder / f"recipe_{distributed.get_rank()}.yaml"
    values = {"name": CASE.name, "data": folder / "data.npz", "runs": folder, "parallelism": "{tensor: 2}", "gpus": 2}
    place.write_text(CASE.recipe.format(**values, batch_size=CASE.batch_size, epochs=4, save_every=CASE.save_every))
    loaded = recipe_room.load(str(place))
    assert loaded.recipe is not None
    plan, _ = compile_plan(loaded.recipe)
    assert plan is not None
    engine = Engine(plan, torch.device("cpu"))
    batches = TrainingBatches(plan.data, get_process_batch(plan), 0, open_sets(plan.data), device=engine.device)
    torch.manual_seed(0)
    model, loss_of = wrapped(CASE.make_model(), "tensor"), CASE.make_loss()
    divided = [item for item in model.parameters() if hasattr(item, "placements")]
    whole = [item for item in model.parameters() if not hasattr(item, "placements")]
    # Adam cannot update both kinds in one group
    optimizer = torch.optim.Adam([{"params": divided}, {"params": whole}], lr=1e-3)

    def ours() -> None:
        engine.step(step, mine, num_rows=CASE.batch_size, lr_factor=1.0, measure=False)

    def by_hand() -> None:
        optimizer.zero_grad()
        loss_of(model(mine[0].tensors["x"]), mine[0].tensors["y"].long()).backward()
        optimizer.step()

    ways: dict[str, Callable[[], None]] = {"ours": ours, "by hand": by_hand}
    taken: Steps = {name: [] for name in ways}
    for step in range(1, num_steps + WARM + 1):
        mine = batches.step(step)
        for name in sorted(ways, reverse=step % 2 == 0):
            distributed.barrier()
            clock, processor = time.perf_counter(), time.process_time()
            ways[name]()
            taken[name].append((time.perf_counter() - clock, time.process_time() - processor))
    if distributed.get_rank() == 0:
        print(json.dumps({name: each[WARM:] for name, each in taken.items()}), flush=True)
    os._exit(0)  # gloo may abort at a normal exit, see docs/architecture.md


def lines(taken: Steps) -> list[str]:
    import torch

    found = [
        f"{date.today()}, torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores, "
        f"one thread per rank; {CASE.name}, medians of {len(taken['ours'])} interleaved steps.",
        "",
        "| time of a step | tensor 2, ms | parallelize_module, ms | ratio |",
        "|---|---|---|---|",
    ]
    for at, what in enumerate(("wall-clock", "CPU, rank 0")):
        ours, by_hand = ([each[at] for each in taken[name]] for name in ("ours", "by hand"))
        ratio = median(one / other for one, other in zip(ours, by_hand, strict=True))
        found.append(f"| {what} | {median(ours) * 1e3:.1f} | {median(by_hand) * 1e3:.1f} | {ratio:.2f} |")
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        run_rank(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
