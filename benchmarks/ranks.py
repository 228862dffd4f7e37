"""Cost of thousands of ranks for the rank that plans, saves and reads for all: `python -m benchmarks.ranks [--write]`

The other ranks are simulated. Measured are: a plan of the 405B model; the plan of a save, which rank 0 makes with
torch.distributed.checkpoint (DCP) from the plans of all ranks that write; the metadata of this save; and the lists of
files with their manifest. Each row of the table is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType

from benchmarks.report import write_table
from declarative_train.engine.checkpoints.format import parse_metadata
from declarative_train.engine.checkpoints.store import CheckpointStore, read_entry
from declarative_train.engine.checkpoints.together import choose_writers
from declarative_train.plan.codec import from_json, to_json
from declarative_train.plan.plan import Plan
from tests.planner.at_size import plan_at_size

PARTS = ("plan", "save", "manifest")
STATES = ("model/{}",)  # without the two moments of AdamW, each of which has as many tensors
GPUS = 8  # GPUs of a node


def processor_s() -> float:
    """Return the CPU seconds of this process and its children so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def plan_of(num_ranks: int, folder: Path) -> Plan:
    layout = f"{{nodes: {num_ranks // GPUS}, gpus_per_node: {GPUS}, hardware: h100-sxm}}"
    parallelism = f"{{data: {{shard: all, replicate: {max(1, num_ranks // 1024)}}}}}"
    return plan_at_size(folder, "405b", batch=16384, layout=layout, parallelism=parallelism)


def measure_plan(num_ranks: int, folder: Path) -> list[tuple[str, float, int]]:
    """Measure how long it takes to compile a plan, and to read it with the row of each rank. Return (what, CPU seconds,
    bytes) for both."""
    begun_s = processor_s()
    plan = plan_of(num_ranks, folder)
    planned_s = processor_s() - begun_s
    text = to_json(plan)
    begun_s = processor_s()
    assert [row.rank for row in from_json(text).layout.ranks] == list(range(num_ranks))
    return [
        ("planning, without a trace", planned_s, len(text)),
        ("reading the plan, all rows", processor_s() - begun_s, len(text)),
    ]


def measure_save(num_ranks: int, folder: Path) -> list[tuple[str, float, int]]:
    plan = plan_of(num_ranks, folder)
    writers = choose_writers(plan.layout)
    properties = TensorProperties(torch.float32)
    shapes = [(each.name, each.shape) for each in plan.parameters if each.tie is None]
    plans = [SavePlan([item for name, shape in shapes for item in items(name, shape, at, len(writers), properties)])
             for at in range(len(writers))]  # fmt: skip
    largest = len(pickle.dumps(plans[0]))
    begun_s = processor_s()
    _, metadata = create_default_global_save_plan(plans)
    planned_s = processor_s() - begun_s
    text = pickle.dumps(metadata)
    begun_s = processor_s()
    parse_metadata(text)
    gathered = ("DCP's plan of a save, without moments", planned_s, largest * len(writers))
    return [gathered, ("reading its metadata", processor_s() - begun_s, len(text))]


def items(name: str, shape: tuple[int, ...], at: int, num: int, properties: TensorProperties) -> list[WriteItem]:
    """Return what rank `at` of `num` ranks writes of a parameter: its part of the first dimension."""
    rows = -(-shape[0] // num)
    held = min(rows, max(0, shape[0] - at * rows))
    if held == 0:
        return []
    chunk = ChunkStorageMetadata(torch.Size([at * rows, *[0] * (len(shape) - 1)]), torch.Size([held, *shape[1:]]))
    data = TensorWriteData(chunk, properties, torch.Size(shape))
    keys = [MetadataIndex(state.format(name), chunk.offsets) for state in STATES]
    return [WriteItem(key, WriteItemType.SHARD, tensor_data=data) for key in keys]


def measure_manifest(num_ranks: int, folder: Path) -> list[tuple[str, float, int]]:
    layout = replace(plan_of(num_ranks, folder).layout)
    writers, store, row = (
        choose_writers(layout),
        CheckpointStore(str(folder / "kept")),
        {"size_bytes": 0, "sha256": "0" * 64},
    )
    store.prepare(1)
    for rank in writers:
        (folder / "kept" / ".step_00000001.partial" / f"__{rank}_0.distcp").touch()
    begun_s, lists = processor_s(), {}
    for first in range(0, len(writers), GPUS):
        files = {f"__{rank}_0.distcp": row for rank in writers[first : first + GPUS]}
        lists[f"files_{first:05d}.json"] = store.write(1, f"files_{first:05d}.json", json.dumps(files).encode())
    entry = store.publish(1, {"format": 3, "step": 1, "files": {}, "lists": lists})
    written_s = processor_s() - begun_s
    num_bytes = os.path.getsize(Path(entry.path) / "manifest.json")
    begun_s = processor_s()
    assert len(read_entry(entry.path).manifest["files"]) == len(writers) + len(lists)
    read_s = processor_s() - begun_s
    return [("writing lists and manifest", written_s, num_bytes), ("reading them, all sizes", read_s, num_bytes)]


MEASURES = {"plan": measure_plan, "save": measure_save, "manifest": measure_manifest}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description="What thousands of ranks cost.")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/performance.md")
    parser.add_argument("--one", nargs=2, metavar=("PART", "RANKS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with tempfile.TemporaryDirectory() as folder:
            rows = MEASURES[args.one[0]](int(args.one[1]), Path(folder))
        print(json.dumps([rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]))
        return 0
    load = os.getloadavg()[0]
    machine = f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores"
    lines = [
        f"{date.today()}, {machine}. Load of the machine before: {load:.1f}.",
        "",
        "| what, on one rank | ranks | CPU seconds | bytes | memory of the process, GB |",
        "|---|---|---|---|---|",
    ]
    for part in PARTS:
        for num_ranks in (1024, 16384) if part != "save" else (1024,):  # no larger run has more ranks that write
            words = [sys.executable, "-m", "benchmarks.ranks", "--one", part, str(num_ranks)]
            done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=900)
            rows, peak = json.loads(done.stdout.splitlines()[-1])
            for what, seconds, num_bytes in rows:
                lines.append(f"| {what} | {num_ranks:,} | {seconds:.2f} | {num_bytes:,} | {peak / 1e9:.2f} |")
                print(lines[-1], flush=True)
    if args.write:
        write_table("benchmarks.ranks", "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
