"""`make planner`: run every cell and the comparisons at size, and write docs/planner-cells.md and docs/planner.md.

python -m tests.planner [WORDS...]     only cells whose name contains the words; the pages are not written
python -m tests.planner --anew         run everything; otherwise results in runs/planner.jsonl are not run again
python -m tests.planner --page         run nothing: write docs/planner.md from docs/planner-cells.md
python -m tests.planner --size         write only the part about large models
python -m tests.planner --architectures  run only the models of libraries, and write their tables on both pages
python -m tests.planner --check        write no page; fail if a result is out of its bounds
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Sequence
from datetime import date
from operator import attrgetter
from typing import NamedTuple

import torch

from tests.planner.architectures import CLASS_BOUND as MODEL_CLASS_BOUND
from tests.planner.architectures import KINDS, QUICK, TOTAL_BOUND, architectures, are_close
from tests.planner.architectures import measure as measure_architecture
from tests.planner.at_size import at_size
from tests.planner.cells import PIPELINES, cells
from tests.planner.measure import BOUND, CLASS_BOUND, SMALL, Result, measure, measure_plan
from tests.planner.record import Record
from tests.planner.shipped import ROOT, TOO_LARGE, shipped

PAGE = ROOT / "docs" / "planner.md"
CELLS_PAGE = ROOT / "docs" / "planner-cells.md"
RECIPES = "shipped recipes"
AT_SIZE = "## Llama 3.1 8B"  # the first heading of what `at_size` makes, which is the end of the page

HEAD = """# Planner: predictions compared with real ranks

| prediction | compared with | result |
|---|---|---|
| memory of a step | real ranks on CPU: [{num} models, modes and precisions](planner-cells.md#cells), [{num_shipped} recipes](planner-cells.md#shipped-recipes) | at most {most:.1%} off; {near} of {all} within 1% ([largest errors](#largest-errors)) |
| memory of [{num_models} models of transformers and timm](#models-of-other-libraries) | a real step on CPU | at most {most_models:.1%} off |
| memory of [Llama 3.1 8B on H100s](#compared-with-torchtitan) | torchtitan's published figures, by a simulated allocator | {titan} of the figure |
| the choice of [`auto`](#what-auto-tries) | a trace of every candidate | the same choice, in tests |
| [time of planning](#what-planning-costs) a 405B model on 16,384 GPUs | | {cost} |

`dtrain plan` predicts the peak memory of a rank before anything starts, also for devices that this machine does not have.
It divides the memory into classes: parameters, gradients, optimizer state, gathered shards, activations, loss, data.
This page compares the predictions with the live bytes of real ranks on CPU. [Step times](planner-times.md) compares
predicted with published times. [Performance](performance.md#gpus) compares both with our engine on one H200.

## Largest errors

Errors are relative to the peak memory of a rank, in total and by class. Classes of at most {small:.0%} of the total are left
out. A test fails above {bound:.0%} of the total or {class_bound:.0%} of a class. Classes of `mixtral` are not tested: its ranks get
unequal numbers of rows, which the plan cannot know.

| | measured | largest error of the total | largest error of a class |
|---|---|---|---|
{errors}

**LSTM.** On tensors without storage torch reports an empty workspace for oneDNN's LSTM. So its size is measured with the
real kernel on at most 16 steps, 64 rows and width 512, and scaled linearly in each (`planner/footprint/fake_rank.py`).
Parts of it are rounded up to pages, so the error is larger for microbatches of few rows; those of the pipelines above
have 2 to 4. A plan for a GPU counts the same workspace, not that of cuDNN.

## How memory is predicted

A *trace* is a step of the real engine on tensors without storage (torch's fake tensors) and in a fake process group. One
rank of each pipeline position is traced, and the bytes of its live tensors are counted. If a step cannot be traced,
the plan gives the reason and estimates from shapes.

Large models are traced in part, and the rest is extrapolated:

| many of these | what is traced |
|---|---|
| copies of a block, {long} or more | 3 and then 4 are traced; all, if copies add unequal memory (dp, zero-bubble pipelines) |
| microbatches of a pipeline | three smaller numbers of them |
| accumulation steps | the last one, or two of them |
| ranks that shard parameters | a few |

Not included:

- temporary memory inside kernels, rounding and fragments of CUDA's allocator, NCCL's buffers, CUDA's context:
  [`dtrain fits`](fits.md#what-the-planner-does-not-know) shows published figures for them
- what a compiled block stores for the backward: the plan counts the tensors that the uncompiled block stores. Only the
  loss on GPUs is counted as compiled: it stores no scores in float32 ([table](performance.md#gpus))
- metrics and evaluations

For a GPU the trace still chooses torch's CPU kernels. A training set that a run keeps on its GPU is added if the plan
knows the GPU. The run decides again, by the memory that is then free.

## How memory is measured

The live bytes of real ranks (gloo, CPU) are counted in their second step, by the same rule as in a trace
(`planner/footprint/live_bytes.py`): each storage from the operation that allocates it until it is freed. Of several
ranks, the one with the largest difference is shown. {quick} of the cells run in `make test`, all cells and the shipped
recipes in `make test-long`. `make planner` writes this page, [planner-cells.md](planner-cells.md) and
[planner-times.md](planner-times.md), and continues where it was stopped.

Several ranks run this step {counted} times, and the smallest memory is shown, because gloo can add to it. gloo computes in
threads, and after a collective such a thread keeps its tensors until it runs again. At a load of 12 to 17 on 2 cores,
5 of 118 steps of `vit, fsdp 2, bf16, none` needed 2.83 or 2.88 MB instead of 2.73.
"""  # noqa: E501

CELLS_HEAD = """# Planner: measured cells

Predicted and measured memory of every cell of `make planner`; [planner.md](planner.md) has the largest errors and how
both are found. {where}

A name of a cell: model, mode and its ranks, precision, activation checkpointing. *Ratio* is predicted / measured memory
of the rank with the largest difference, *worst class* the class that is furthest off. In `mixtral_even` each token uses
all experts, in `mixtral` 2 of 8: there a rank gets more or fewer rows than others, and its peak may be at another
moment, so that only the total is judged.
"""


AUTO = """## What `auto` tries

The candidates of `parallelism: auto`:

- ddp, fsdp, and on several nodes fsdp with replicas
- pipelines of every schedule with about 1, 2, 4 or 8 microbatches per rank, alone, with fsdp or with ddp
- if speeds are known, or if nothing else fits: layers, experts or positions divided over 2 to 16 ranks of a node
  (`tensor`, `expert`, `context`), alone, with fsdp or with ddp; `tensor` x `context`; and `tensor` x `pipeline` with
  the schedule 1f1b and about 2 or 8 microbatches per rank

These are too many to trace them all. So `auto` works in two steps.

1. **Estimate** the memory of each candidate. The shards of parameters, gradients and optimizer state follow from the
   layout, the number of microbatches in flight from the pipeline schedule, and the activations of a microbatch from one
   trace.
2. **Trace** the candidate with the smallest estimated time that is not ruled out, then the next one, until one fits.
   A candidate is ruled out if
    - its parameters, gradients and optimizer state alone exceed the memory,
    - its trace did not fit, or
    - its estimate is more than 1.25 times the memory of the device. (If a pipeline of the same kind was traced, the
      estimate is corrected by that trace, and the limit is 1.1 times.)

The time of divided layers is first a lower bound, from the kernels of the whole model and what the ranks exchange
(`> 1 s` in the plan). The kernels of one rank are traced only if this bound is the smallest time.

Tests compare the choice with a trace of every candidate (`tests/planner/test_auto_search.py`): a llama and an LSTM on 2
GPUs and a llama on 4, with devices of every size. There, and for a ViT and a ResNet on 2 GPUs, estimates were 0.75 to
1.19 of the trace.

- `auto` can miss the best candidate if an estimate is further off, or if it reaches its limit of traces, about 20 s of
  CPU time. The plan then names the candidates that would be faster and were not traced.
- If even the smallest estimates do not fit, `auto` traces four of them before it reports that nothing fits.
- A mode that the recipe names is traced too. If the trace fails or would need more than 2,500 calls of layers, the plan
  says so.
- Both limits follow from the number of calls, not from a clock, so a recipe has the same plan on all machines.

"""


SAVED = """## What recomputation and chunks save

The rows `llama, single, fp32` of [the cells](planner-cells.md#cells) have the figures of a small model.
`tests/engine/test_selective.py` and `tests/engine/test_chunked_loss.py` test these statements:

- `selective` stores attention and every second matrix product, in the order of a block's forward, and recomputes the
  rest. The plan counts half of a block's products as recomputed.
- A loss with `chunks` never has all scores in memory. With 384 tokens, 997 classes and 7 chunks, the peak falls by more
  than 1.5 times the scores in float32. Its memory counts as activations, since the head's layer computes it.

All figures of a row are those at the moment of the highest total. So `loss` may be a few bytes if this moment is in
another part of the step.

"""


ARCHITECTURES = """## Models of other libraries

Every model of transformers and timm is traced like the blocks of this project. {number} of them, made from random configs, in
fp32 and bf16, with and without recomputation, are compared with the live bytes of a real step on CPU ([all
rows](planner-cells.md#architectures)). A test fails above {bound:.0%} of the total or {class_bound:.0%} of a class; {quick} of them run in
`make test`. How a mixture divides its tokens over its experts is unknown in a trace, which divides them evenly.

| | models | largest error of the total | largest error of a class |
|---|---|---|---|
{rows}

"""  # noqa: E501
ROWS_OF_MODELS = "## Architectures"


def main(words: list[str], record: Record | None = None) -> int:
    record = record or Record()
    options, words = {word for word in words if word.startswith("--")}, [each for each in words if each[:2] != "--"]
    if "--anew" in options:
        record.lines.forget()
    if "--size" in options:
        PAGE.write_text(written_page(at_size()))
        return 0
    models = [each for each in architectures() if all(word in each.name for word in words)]
    if "--page" not in options:
        for each in models:
            if each.name not in record.results():
                keep(record, measure_architecture(each), are_close)
    if "--architectures" in options:
        before = CELLS_PAGE.read_text().partition(f"\n{ROWS_OF_MODELS}")[0]
        CELLS_PAGE.write_text(before + architectures_part([record.results()[each.name] for each in models]))
        PAGE.write_text(written_page(size_part()))
        return 0
    chosen = [cell for cell in cells() if all(word in cell.name for word in words)]
    recipes_too = [each for each in shipped() if all(word in each.name for word in words)]
    if "--page" not in options:
        for each in recipes_too:
            if each.name not in record.results():
                keep(record, measure_plan(each.name, each.plan()))
        for cell in chosen:
            if cell.name not in record.results():
                keep(record, measure(cell))
    found = record.results()
    results = [found[cell.name] for cell in chosen if cell.name in found]
    recipes = [found[each.name] for each in recipes_too if each.name in found]
    of_models = [found[each.name] for each in models if each.name in found]
    wrong = [each.name for each in (*results, *recipes) if not each.is_close]
    wrong += [each.name for each in of_models if not are_close(each)]
    print(f"{len(results) + len(recipes)} ran, out of bounds: {', '.join(wrong) or 'none'}")
    if not words and "--check" not in options:
        if "--page" not in options:
            cells_text = cells_page(results, recipes, record.lines.commits())
            CELLS_PAGE.write_text(cells_text + architectures_part(of_models))
        PAGE.write_text(written_page(size_part() if "--page" in options else at_size()))
    return 1 if wrong else 0


def size_part() -> str:
    """Return the part of the page about large models."""
    _, heading, rest = PAGE.read_text().partition(AT_SIZE)
    return heading + rest


def written_page(size: str) -> str:
    """Return docs/planner.md from the rows of docs/planner-cells.md."""
    text = CELLS_PAGE.read_text()
    return page(rows_of(text), size, architecture_rows(text))


def keep(record: Record, result: Result, is_close: Callable[[Result], bool] = attrgetter("is_close")) -> None:
    record.add(result)
    kind, off = result.worst_class
    verdict = "" if is_close(result) else "  OUT OF BOUNDS"
    print(f"{result.name}: {result.ratio:.3f}, {kind} off by {off:.1%}, {result.seconds:.1f} s{verdict}", flush=True)


class Row(NamedTuple):
    """Row of docs/planner-cells.md. `off` and `class_off` are fractions."""

    name: str
    off: float
    kind: str
    class_off: float


def rows_of(text: str) -> list[Row]:
    """Return the rows of docs/planner-cells.md, without those of architectures."""
    return _rows(text.partition(f"\n{ROWS_OF_MODELS}")[0])


def architecture_rows(text: str) -> list[Row]:
    return _rows(text.partition(f"\n{ROWS_OF_MODELS}")[2])


def architectures_part(results: Sequence[Result]) -> str:
    """Return the end of docs/planner-cells.md."""
    return f"\n{ROWS_OF_MODELS}\n\n{date.today()}, one rank each.\n\n{table(results)}\n"


def describe_architectures(rows: Sequence[Row]) -> str:
    """Return the section of docs/planner.md."""
    by_kind = {kind: [row for row in rows if row.name.startswith(f"{kind}: ")] for kind in KINDS}
    return ARCHITECTURES.format(
        number=len(rows),
        bound=TOTAL_BOUND,
        class_bound=MODEL_CLASS_BOUND,
        quick=len(QUICK),
        rows="\n".join(largest_errors(kind, each) for kind, each in by_kind.items() if each),
    )


def _rows(text: str) -> list[Row]:
    found = re.findall(r"^\| (.*?) \| \d+ \| .* MB \| .* MB \| ([\d.]+) \| (\w+) \| ([\d.]+)% \|$", text, re.M)
    return [Row(name, round(abs(float(ratio) - 1), 3), kind, float(off) / 100) for name, ratio, kind, off in found]


def page(rows: Sequence[Row], size: str, models: Sequence[Row]) -> str:
    """Return docs/planner.md. `size`: its part about large models; `models`: the rows of architectures."""
    from declarative_train.planner.footprint.forecast import LONG
    from tests.engine.live_bytes import NUM_COUNTED
    from tests.planner.cells import QUICK as QUICK_CELLS

    off = [each.off for each in rows]
    titan = re.findall(r"^\| \d+ \| .* \| (\d\.\d+) \|$", size, re.M)
    cost = re.findall(r"^\| 405B.*?\| ([\d.]+ s) \|", size, re.M)
    kind_of = {
        cell.name: f"{cell.model}, {'pipelines' if cell.way in PIPELINES else 'other modes'}" for cell in cells()
    }
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(kind_of.get(row.name, RECIPES), []).append(row)
    head = HEAD.format(
        errors="\n".join(largest_errors(kind, kinds[kind]) for kind in sorted(kinds)),
        quick=len(QUICK_CELLS),
        long=LONG,
        counted=NUM_COUNTED,
        num=len(rows) - len(kinds[RECIPES]),
        num_shipped=len(kinds[RECIPES]),
        most=max(off),
        near=sum(each < 0.01 for each in off),
        all=len(off),
        num_models=len(models),
        most_models=max(each.off for each in models),
        titan=f"{min(titan)} to {max(titan)}",
        cost=f"{min(cost)} to {max(cost)}",
        bound=BOUND,
        class_bound=CLASS_BOUND,
        small=SMALL,
    )
    return "\n".join([head, describe_architectures(models) + AUTO + SAVED + size.rstrip("\n"), ""])


def largest_errors(kind: str, rows: Sequence[Row]) -> str:
    whole, part = max(rows, key=lambda each: each.off), max(rows, key=lambda each: each.class_off)
    total = f"{whole.off:.1%}: `{whole.name}`" if whole.off else "0.0%"
    of_class = f"{part.class_off:.1%} ({part.kind}): `{part.name}`" if part.class_off else "0.0%"
    return f"| {kind} | {len(rows)} | {total} | {of_class} |"


def cells_page(results: Sequence[Result], recipes: Sequence[Result], commits: Sequence[str]) -> str:
    """Return docs/planner-cells.md."""
    where = (
        f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}, CPU, at {', '.join(commits)}."
    )
    too_large = f"{' and '.join(f'`{each}`' for each in TOO_LARGE)} is too large for ranks on the measuring machine."
    run = f"{len(results)} of the {len(list(cells()))} cells were run."
    parts = ["## Shipped recipes", "", too_large, "", table(recipes), "", "## Cells", "", run, "", table(results), ""]
    return "\n".join([CELLS_HEAD.format(where=where), *parts])


def table(results: Sequence[Result]) -> str:
    rows = [
        "| | ranks | predicted | measured | ratio | worst class | off by |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in results:
        kind, off = each.worst_class
        kind = kind or "none"
        sizes = f"{each.predicted.total / 1e6:.2f} MB | {each.measured.total / 1e6:.2f} MB"
        rows.append(f"| {each.name} | {each.num_ranks} | {sizes} | {each.ratio:.3f} | {kind} | {off:.1%} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
