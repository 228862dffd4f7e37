"""`python -m tests.planner.times`: write docs/planner-times.md, predicted step times compared with published ones."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from declarative_train.components.hardware import HARDWARE
from declarative_train.planner.calibration import calibrate_to_rows, write_calibration
from declarative_train.planner.estimate.constants import DEFAULT, MEGATRON, Machine
from tests.planner.cpu_times import part_of, with_part
from tests.planner.measure import compiled
from tests.planner.shipped import ROOT
from tests.planner.vtrain import SEED, Row, divide, errors, ordered, predicted_ms, read_rows

PAGE = ROOT / "docs" / "planner-times.md"
PUBLISHED = Path(__file__).parent / "published_steps.csv"
HEAD = """# Planner: step times compared with published ones

Our own engine has been measured on CPU and on one GPU ([three models](performance.md#gpus)). So the time model is also
compared with step times that others published. `planner/estimate/constants.py` has every constant of the model with its
meaning and source. `make planner` writes this page.

## GPT on A100s, 2 to 512 GPUs

Measured with Megatron-DeepSpeed, another engine (every second row of the data that
[vTrain](https://github.com/VIA-Research/vTrain), arXiv 2312.12391, published). So the predictions imitate it:

- The recipe computes what that engine computes: attention by separate kernels, and whole layers again in the backward.
- Its host needs {call:.0f} us for an operation, where 10 us are assumed for ours.
- Gradients are averaged after the backward.
- If a rank has a part of each layer, the recipe has this part, and all-reduces are added by the formulas of `tensor`.

Five constants are fitted to {fitted} rows (seed {seed}, `python -m tests.planner.fit`). The errors are those on the
other {others}. A test computes them again.

| rows that were not fitted | number | mean error | predicted / measured - 1 |
|---|---|---|---|
{groups}

{pairs:.1%} of the pairs of layouts that differ by more than 5% are ordered correctly. {inside:.1%} of these rows are in
the interval that is to contain 90% of them.

## Llama on H100s

Recipes of our own engine with the published settings: fsdp, with replicas on several nodes or with tensor ranks.
Two figures come from these rows: the rate of large products in long runs, from MaxText's 70B, and the width of the
interval that `dtrain plan` shows. Nothing else is fitted to them.

- *By data sheet*: predicted for `h100-sxm`, as recipes name it.
- *Own machine*: predicted with a calibration file that has the memory bandwidth and network of the measured machines.
  These are 2.4 instead of 3.35 TB/s (torchtitan), and 12.5 instead of 50 GB/s for a GPU (MaxText on several nodes).
- *Predicted / measured* is for the own machine.

| | GPUs | tensor | recomputed | measured | by data sheet | own machine | predicted / measured | difference |
|---|---|---|---|---|---|---|---|---|
{published}

{sources}

{near} of the rows in bf16 are in this interval by the data sheet, {near_own} by the own machine.

**8B on 8 GPUs by parts.** {parts} These GPUs are limited to 500 W, and large products on H100s are limited by power
(thonking.ai, "Strangely, Matrix Multiplications on GPUs Run Faster When Given Predictable Data", 2024). No published
rate at 500 W was found, so none is assumed. Products and attention at {power:.0%} of their rate at 700 W would explain
the rest. After `dtrain calibrate -o FILE --rows ROWS` with the first row, torchtitan's other three rows of fsdp are
predicted within {after:.0%}. Its rows with tensor ranks were measured half a year later, with a newer torch, and need
no calibration.

**Calibration with one row.** After a calibration with one of the unfitted A100 rows, the mean error of the others is
{one_row:.1%}, averaged over all choices of this row.

**Not compared.** Megatron-Bridge (25.11) publishes dense models in fp8 only, which recipes do not have. So its row
above is predicted in bf16, and shows the gain of fp8. Automodel's tables (2025-10) have mixtures of experts with
special kernels, and one dense model: Llama 3 70B with LoRA, in a layout that was not tried here.

## What is not known

- the time of the host for an operation of our engine on a server (10 us are assumed), and the time of a step that does
  not depend on the model (2 ms are assumed)
- what a compiler fuses: 40% of the traffic of elementwise operations and 30% of their calls are assumed to remain
- GPUs whose power or network is limited below their data sheet: calibrate with one measured step
- CPUs: times are predicted only with a calibration, on a quiet machine. Operations that torch does not divide over its
  threads, or that are slow there (batch norm, thin products), are predicted too fast
- slow disks and networks: of the data's time, only the gathering of rows and the decoding of pictures are counted.
  `dtrain run` reports the time that a run waits for data
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


def read_published() -> list[dict[str, str]]:
    with PUBLISHED.open() as file:
        return list(csv.DictReader(file))


def recipe_of(row: dict[str, str]) -> str:
    """Return the recipe of a published row, on the hardware of the data sheet."""
    sizes = {"tensor": row["tensor"], "data": "{shard: all" + f", replicate: {row['replicas']}" * _several(row) + "}"}
    axes = ", ".join(f"{name}: {size}" for name, size in sizes.items() if size != "1")
    return RECIPE.format(**row, end=int(row["length"]) + 1, parallelism=f"{{{axes}}}")


def _several(row: dict[str, str]) -> bool:
    return row["replicas"] != "1"


def machine_of(row: dict[str, str]) -> Machine:
    """Return an H100 with the memory and the network of the row's machines, if they differ from the data sheet."""
    figures = {name: float(row[name]) for name in ("memory_per_s", "network_per_s") if row[name]}
    return Machine(replace(HARDWARE["h100-sxm"], **figures))


def predict_published() -> list[tuple[dict[str, str], float, float]]:
    """Return the published rows with the seconds that are predicted by the data sheet, and by the row's own memory and
    network."""
    return [
        (row, predict(row, Machine(HARDWARE["h100-sxm"])), predict(row, machine_of(row))) for row in read_published()
    ]


def predict(row: dict[str, str], machine: Machine) -> float:
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_calibration(folder / "machine.json", machine, row["what"])
        (folder / "recipe.yaml").write_text(recipe_of(row).replace("hardware: h100-sxm", "calibration: machine.json"))
        estimate = compiled(folder / "recipe.yaml", row["what"]).estimate
    assert estimate is not None
    assert estimate.step_s is not None
    return estimate.step_s


def page() -> str:
    fitted, others = divide(read_rows(), SEED)
    off = errors(others)
    names = ["all", *sorted({row.group for row in others})]
    rows = []
    for name in names:
        here = off if name == "all" else off[[row.group == name for row in others]]
        rows.append(f"| {name} | {len(here)} | {np.abs(here).mean():.1%} | {here.min():+.0%} to {here.max():+.0%} |")
    published = predict_published()
    ratios = [(row, sheet / float(row["seconds"]), own / float(row["seconds"])) for row, sheet, own in published]
    titan = [sheet for row, sheet, _ in ratios if row["what"].startswith("torchtitan") and row["tensor"] == "1"]
    scale = calibrate_to_rows(Machine(HARDWARE["h100-sxm"]), [(titan[0], 1.0)]).constants.scale
    in_bf16 = [(sheet, own) for row, sheet, own in ratios if "fp8" not in row["note"]]
    near, near_own = (
        sum(abs(np.log(each)) <= DEFAULT.error for each in column) for column in zip(*in_bf16, strict=True)
    )
    parts, power = parts_of(published[0])
    return HEAD.format(
        near=f"{near} of {len(in_bf16)}",
        near_own=near_own,
        call=MEGATRON.call_s * 1e6,
        fitted=len(fitted),
        others=len(others),
        seed=SEED,
        groups="\n".join(rows),
        pairs=ordered(others),
        inside=(np.abs(np.log1p(off)) <= MEGATRON.error).mean(),
        published="\n".join(
            f"| {row['what']} | {8 * int(row['nodes'])} | {row['tensor']} | {row['recompute']} | "
            f"{float(row['seconds']):.2f} s | {sheet:.2f} s | {own:.2f} s | {own / float(row['seconds']):.2f} | "
            f"{row['note']} |"
            for row, sheet, own in published
        ),
        sources="Sources: " + "; ".join(sorted({row["source"] for row, *_ in published})) + ".",
        parts=parts,
        power=power,
        after=max(abs(scale * each - 1) for each in titan),
        one_row=error_after_one_row(others),
    )


def parts_of(row: tuple[dict[str, str], float, float]) -> tuple[str, float]:
    """Return the predicted parts of a step in words, and the factor of the rate of products that would explain the
    difference from the measured one."""
    published, _, own_s = row
    machine = machine_of(published)
    slower = replace(machine.hardware, reached=machine.hardware.reached / 2)
    bound_s = predict(published, Machine(slower)) - own_s  # what is in proportion to the time of products
    quick = replace(machine.hardware, memory_per_s=1e3 * (machine.hardware.memory_per_s or 0.0))
    moved_s = own_s - predict(published, Machine(quick))
    measured_s = float(published["seconds"])
    text = (
        f"Of {own_s:.2f} s, {bound_s:.2f} s are products and attention, and {moved_s:.2f} s elementwise "
        "operations,\nthe loss, the optimizer and the copies of fsdp, at the speed of memory; transfers are hidden. "
        f"{measured_s:.2f} s\nwere measured."
    )
    return text, bound_s / (bound_s + measured_s - own_s)


def error_after_one_row(rows: Sequence[Row]) -> float:
    """Return the mean error of all rows but one, after a calibration with that one, over all choices of it."""
    ratios = np.array([row.measured_ms / predicted_ms(row) for row in rows])
    found = []
    for at, ratio in enumerate(ratios):
        scale = calibrate_to_rows(Machine(HARDWARE["a100-sxm-80gb"], MEGATRON), [(1.0, float(ratio))]).constants.scale
        found.append(np.delete(np.abs(scale / ratios - 1), at).mean())
    return float(np.mean(found))


if __name__ == "__main__":
    PAGE.write_text(with_part(page(), part_of(PAGE.read_text())))
    sys.exit(0)
