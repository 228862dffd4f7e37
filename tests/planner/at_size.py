"""Models that no machine here could hold: the carried-on figure beside one of all layers traced, torchtitan's published
one, and what planning costs."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from declarative_train.plan.plan import Plan
from declarative_train.plan.predicted import MemoryPlan
from declarative_train.runtime.footprint import forecast
from declarative_train.runtime.footprint.forecast import Forecast
from tests.planner.measure import compiled

LLAMA = """
name: {name}
data:
  source: {{type: synthetic, kind: tokens, rows: 40000000}}
  window: {{length: 8193, stride: 8192}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model:
  graph:
    logits: {{type: llama, vocabulary: 128256, layers: {layers}, width: {width}, heads: {heads}, kv_heads: 8,
             hidden: {hidden}, input: tokens}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next{chunks}}}}}
training:
  steps: 10
  global_batch_size: {batch}
  precision: bf16
  activation_checkpointing: {checkpointing}
  optimizer: {{type: adamw, lr: 1e-4}}
parallelism: {parallelism}
layout: {layout}
"""
SIZES = {
    "8b": {"layers": 32, "width": 4096, "heads": 32, "hidden": 14336},
    "70b": {"layers": 80, "width": 8192, "heads": 64, "hidden": 28672},
    "405b": {"layers": 126, "width": 16384, "heads": 128, "hidden": 53248},
}


def recipe(size: str, **more: object) -> str:
    settings = {"name": size, "parallelism": "fsdp", "checkpointing": "blocks", "chunks": ""} | SIZES[size] | more
    return LLAMA.format(**settings)


def plan_at_size(folder: Path, size: str, **more: object) -> Plan:
    path = folder / f"{size}.yaml"
    path.write_text(recipe(size, **more))
    return compiled(path, size)


def eight_ranks(folder: Path, checkpointing: str, **more: object) -> Plan:
    """torchtitan's: Llama 3.1 8B, 8 ranks, 2 x 8,192 tokens on each."""
    layout = "{gpus: 8}"
    return plan_at_size(folder, "8b", batch=16, layout=layout, checkpointing=checkpointing, **more)


def whole(plan: Plan) -> MemoryPlan:
    """With every layer traced."""
    kept = forecast.LONG, forecast.MOST_CALLS
    forecast.LONG, forecast.MOST_CALLS = 10**6, 10**6
    try:
        return Forecast().memory(plan).rows[0]
    finally:
        forecast.LONG, forecast.MOST_CALLS = kept


def planned_cost(folder: Path, **more: object) -> tuple[float, float, str]:
    """(seconds, GB of the largest of its processes, the memory or that nothing fits) of `dtrain plan`."""
    path = folder / "cost.yaml"
    path.write_text(recipe("405b", batch=16384, **more))
    begun_s = time.monotonic()
    command = [sys.executable, "-m", "declarative_train", "plan", str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    seconds = time.monotonic() - begun_s
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    lines = ended.stdout.splitlines()
    at = next((number for number, line in enumerate(lines) if line.startswith("memory per device")), None)
    if at is None:  # nothing fits: the error says so
        return seconds, peak, next(line for line in ended.stderr.splitlines() if "P108" in line).partition("P108] ")[2]
    return seconds, peak, lines[at + 2].split()[-2] + " " + lines[at + 2].split()[-1]


def at_size() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = ["## Llama 3.1 8B on 8 ranks, fsdp, bf16, 2 x 8,192 tokens each", ""]
        parts += ["| recompute | parameters | gradients | optimizer | gathered | activations | loss | together |"]
        parts += ["|---|---|---|---|---|---|---|---|"]
        found = {}
        for checkpointing in ("none", "selective", "blocks"):
            plan = eight_ranks(folder, checkpointing)
            found[checkpointing] = Forecast().memory(plan).rows[0]
            parts.append(row(checkpointing, found[checkpointing]))
        chunked = eight_ranks(folder, "selective", chunks=", chunks: 8")
        parts.append(row("selective, loss in 8 chunks", Forecast().memory(chunked).rows[0]))
        every = whole(eight_ranks(folder, "blocks"))
        parts.append(row("blocks, all 32 layers traced", every))
        off = found["blocks"].total / every.total - 1
        parts += ["", f"The figure carried on from 4 and 5 layers is off by {off:.2%} of that of all 32.", ""]
        parts += [TITAN, "## What planning costs", "", "| | seconds | GB | memory |", "|---|---|---|---|"]
        layout = "{nodes: 2048, gpus_per_node: 8, hardware: h100-sxm}"
        for way in ("fsdp", "auto"):
            seconds, peak, line = planned_cost(folder, layout=layout, parallelism=way)
            parts.append(f"| 405B on 16,384 GPUs, {way} | {seconds:.1f} | {peak:.2f} | {line} |")
    return "\n".join(parts) + "\n"


TITAN = """torchtitan publishes 82.4 GiB (88.5 GB) for this model on 8 H100 (FSDP2, 2 x 8,192 tokens, eager, *selective*
recompute; `benchmarks/llama3_h100_202412`): all that its allocator held at most. Beside it stands the row `selective`,
which keeps the same operations. It counts live tensors: no fragments, no workspace of kernels, none of NCCL's memory;
and it counts keys and values repeated for all heads, as torch's CPU kernel needs them. How the rest is shared out among
these was not measured: no GPU was at hand.
"""


def row(name: str, memory: MemoryPlan) -> str:
    cells = (memory.parameters, memory.gradients, memory.optimizer, memory.gathered, memory.activations, memory.loss)
    return f"| {name} | " + " | ".join(f"{cell / 1e9:.2f} GB" for cell in (*cells, memory.total)) + " |"
