"""`python -m tests.planner.times`: write docs/planner-times.md, predicted step times compared with published ones."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from declarative_train.planner.estimate.constants import DEFAULT, MEGATRON
from tests.planner.measure import compiled
from tests.planner.shipped import ROOT
from tests.planner.vtrain import SEED, divide, errors, ordered, read_rows

PAGE = ROOT / "docs" / "planner-times.md"
PUBLISHED = Path(__file__).parent / "published_steps.csv"
HEAD = """# Planner: step times compared with published ones

No GPU has measured our own engine yet. So the *form* of the time model is compared with step times that others
published. `planner/estimate/constants.py` has every constant with its meaning and source; the fitted ones are from half
of the first table's rows. `make planner` writes this page.

## GPT on A100s, 2 to 512 GPUs

Measured with Megatron-DeepSpeed ([vTrain](https://github.com/VIA-Research/vTrain), arXiv 2312.12391; every second row
of its published data). It is another engine: the model is a recipe that computes what that engine computes (attention
by separate kernels, whole layers computed again), its host needs {call:.0f} us for an operation where 10 us are
assumed for ours, and gradients are averaged after the backward. Where a rank holds a part of each layer, that part is
a recipe of its own with all-reduces added, by the same formulas. Five constants are fitted to {fitted} rows (seed
{seed}, `python -m tests.planner.fit`); the errors are those on the other {others}. A test computes them again.

| rows that were not fitted | number | mean error | predicted / measured - 1 |
|---|---|---|---|
{groups}

{pairs:.1%} of the pairs of layouts that differ by more than 5% are ordered correctly. {inside:.1%} of these rows are in
the interval that is to contain 90% of them.

## Llama on H100s

Recipes of our own engine with the published settings, fsdp, or fsdp with replicas on several nodes; `h100-sxm` with its
data sheet. Nothing is fitted to these rows except the rate of long runs, from MaxText's 70B.

| | GPUs | recomputed | measured | predicted | predicted / measured | difference |
|---|---|---|---|---|---|---|
{published}

{sources}

{near} are in the interval that `dtrain plan` shows. With `dtrain calibrate -o FILE --rows ROWS`
and the first row of torchtitan, its other three are predicted within {after:.0%}.
Megatron-Bridge publishes its Llama figures in fp8 only and Automodel its dense models with adapters or two axes more,
which are not compared.

## What is not known

- the time of the host for an operation of our engine on a server (10 us are assumed), and the step's own time (2 ms)
- what a compiler fuses: 40% of the traffic of elementwise operations and 30% of their calls are assumed to remain
- GPUs whose power or network is limited below their data sheet: calibrate with one measured step
- CPUs: only with a calibration, on a quiet machine; operations that torch does not divide over its threads are
  predicted too fast
- a slow data source: `dtrain run` reports the time that a run waits for data
- ranks of the `tensor` axis in recipes
"""
RECIPE = """
name: published
data:
  source: {{type: synthetic, kind: tokens, rows: 40000000}}
  window: {{length: {end}, stride: {length}}}
  fields:
    tokens: {{column: tokens, rows: ":-1"}}
    next: {{column: tokens, rows: "1:"}}
model:
  graph:
    logits: {{type: llama, vocabulary: {vocabulary}, layers: {layers}, width: {width}, heads: {heads},
             kv_heads: {kv_heads}, hidden: {hidden}, input: tokens}}
objective: {{loss: {{type: cross_entropy, input: logits, target: next}}}}
training:
  steps: 10
  global_batch_size: {global_batch}
  microbatch_size: {microbatch}
  compile: {compile}
  precision: bf16
  activation_checkpointing: {recompute}
  optimizer: {{type: adamw, lr: 1e-4}}
parallelism: {parallelism}
layout: {{nodes: {nodes}, gpus_per_node: 8, hardware: h100-sxm}}
"""


def predict_published() -> list[tuple[dict[str, str], float]]:
    """Return the published rows with the predicted seconds."""
    found = []
    with PUBLISHED.open() as file, TemporaryDirectory() as folder:
        for row in csv.DictReader(file):
            path = Path(folder) / "recipe.yaml"
            several = f"{{data: {{shard: all, replicate: {row['replicas']}}}}}"
            parallelism = "fsdp" if row["replicas"] == "1" else several
            path.write_text(RECIPE.format(**row, end=int(row["length"]) + 1, parallelism=parallelism))
            estimate = compiled(path, row["what"]).estimate
            assert estimate is not None
            assert estimate.step_s is not None
            found.append((row, estimate.step_s))
    return found


def page() -> str:
    fitted, others = divide(read_rows(), SEED)
    off = errors(others)
    names = ["all", *sorted({row.group for row in others})]
    rows = []
    for name in names:
        here = off if name == "all" else off[[row.group == name for row in others]]
        rows.append(f"| {name} | {len(here)} | {np.abs(here).mean():.1%} | {here.min():+.0%} to {here.max():+.0%} |")
    published = predict_published()
    titan = [seconds / float(row["seconds"]) for row, seconds in published if row["what"].startswith("torchtitan")]
    inside = [abs(np.log(seconds / float(row["seconds"]))) <= DEFAULT.error for row, seconds in published]
    return HEAD.format(
        near=f"{sum(inside)} of {len(inside)}",
        call=MEGATRON.call_s * 1e6,
        fitted=len(fitted),
        others=len(others),
        seed=SEED,
        groups="\n".join(rows),
        pairs=ordered(others),
        inside=(np.abs(np.log1p(off)) <= MEGATRON.error).mean(),
        published="\n".join(
            f"| {row['what']} | {8 * int(row['nodes'])} | {row['recompute']} | {float(row['seconds']):.2f} s | "
            f"{seconds:.2f} s | {seconds / float(row['seconds']):.2f} | {row['note']} |"
            for row, seconds in published
        ),
        sources="Sources: " + "; ".join(sorted({row["source"] for row, _ in published})) + ".",
        after=max(abs(each / titan[0] - 1) for each in titan),
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
