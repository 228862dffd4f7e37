"""`make planner`: run every cell and the comparisons at size, and write docs/planner.md.

python -m tests.planner [WORDS...]     only cells whose name contains the words; the page is not written
python -m tests.planner --anew         run everything; otherwise results in runs/planner.jsonl are not run again
python -m tests.planner --page         run nothing: write the page from these results
python -m tests.planner --size         write only the part about large models
python -m tests.planner --check        write no page; fail if a result is out of its bounds
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Sequence
from datetime import date

import torch

from tests.planner.at_size import at_size
from tests.planner.cells import cells
from tests.planner.measure import BOUND, CLASS_BOUND, SMALL, Result, measure, measure_plan
from tests.planner.record import Record
from tests.planner.shipped import ROOT, TOO_LARGE, shipped

PAGE = ROOT / "docs" / "planner.md"
AT_SIZE = "## Llama 3.1 8B"  # the first heading of what `at_size` makes

CELLS = "## Cells"

HEAD = """# Planner: predictions compared with real ranks

| prediction | compared with | result |
|---|---|---|
| memory of a step | real ranks on CPU: [{num} models, modes and precisions](#cells), [{num_shipped} recipes](#shipped-recipes) | at most {most} off; {near} of {all} within 1% |
| memory of [Llama 3.1 8B on H100s](#compared-with-torchtitan) | torchtitan's published figures, by a simulated allocator | {titan} of the figure |
| the choice of [`auto`](#what-auto-tries) | a trace of every candidate | the same choice, in tests |
| [time of planning](#what-planning-costs) a 405B model on 16,384 GPUs | | {cost} |

`dtrain plan` predicts the peak memory of a rank, by class (parameters, gradients, optimizer state, gathered shards,
activations, loss), before anything starts, also for devices that this machine does not have. This page shows how far
such predictions are from the memory of real ranks. Step times are estimates from data sheets. Neither has been compared
with a GPU yet.

## How memory is predicted and measured

**Predicted.** One rank of each kind runs a step of the real engine on tensors without storage (torch's fake tensors,
and a fake process group), and the bytes of live tensors are counted, the loss included. Of more than {long} equal
blocks in a row, 3 and then 4 are traced, of many microbatches three smaller numbers, and the rest is extrapolated. If
one block more does not add the same to each pass (dp, pipelines without bubbles), all are traced. If a step cannot be
traced, the plan gives the reason and estimates from shapes.

**Measured.** The live bytes of real ranks (gloo, CPU) are counted in their second step by the same rule
(`planner/footprint/live_bytes.py`): each storage from the operation that allocates it until it is freed. Of several
ranks the one with the largest difference is shown. Bounds: {bound:.0%} of the total, {class_bound:.0%} of a class that
is more than {small:.0%} of it. `make planner` makes this page and continues where it was stopped. {quick} of the cells
run in `make test`, all cells and the shipped recipes in `make test-long`.

{where}

**Not included**: temporary memory inside kernels, rounding and fragments of CUDA's allocator, NCCL's buffers, CUDA's
context, tensors that `compile` saves or keeps, metrics and evaluations. For a GPU the trace still chooses torch's CPU
kernels. A training set that a run keeps on its GPU is added if the plan knows the GPU; the run decides again by the
memory that is then free.

**Noise.** gloo computes in threads. After a collective has finished, such a thread may keep its tensors until it runs
again, which on a busy machine can last for the next operations. `vit, fsdp 2, bf16, none` has 0.40 MB gathered at its
peak; in 5 of 118 steps, at a load of 12 to 17 on 2 cores, it had 0.60 or 0.65 MB (2.83 and 2.88 MB in total instead of
2.73). This can only add, so the smallest of {counted} counted steps is shown. GPUs make no such copy.

**LSTM.** torch reports an empty workspace on fake tensors, so its size is measured with oneDNN's own kernel at a small
size and scaled (within 2%).
"""  # noqa: E501


AUTO = """## What `auto` tries

`auto` has too many candidates to trace them all. It works in two steps.

1. **Estimate** the memory of each candidate: shards of parameters, gradients and optimizer state from the layout; the
   microbatches in flight from the closed form of the pipeline schedule (equal to torch's own grid:
   `tests/planner/test_schedule_estimates.py`); the activations of each from one trace of the sharded model; and the
   receive buffers of a stage.
2. **Trace** the candidate with the smallest estimated time that is not ruled out, then the next one, until one fits.
   Ruled out are candidates whose update alone does not fit, whose trace did not fit, and whose estimate is more than
   1.25 times the memory of the device (1.1 times if a pipeline of the same kind with other microbatches was traced,
   which shows the error of the estimate).

Tests compare the choice with a trace of every candidate (`tests/planner/test_auto_search.py`: a llama and an LSTM on 2
GPUs and a llama on 4, with devices of every size). There, and for a ViT and a ResNet on 2 GPUs, estimates were 0.75 to
1.19 of the trace.

`auto` can miss the best candidate if an estimate is further off, or if its budget of about 20 s of CPU time is used up.
(The budget counts calls, so that a recipe gives the same plan on every machine.) The plan then names the candidates
that would be faster and were not traced. If even the smallest estimates do not fit, `auto` traces four of them before
it reports that. It ranks by estimated times. A mode that the recipe names is always traced.

"""


SAVED = """## What recomputation and chunks save

See the rows `llama, single, fp32`; `tests/engine/test_selective.py` and `tests/engine/test_chunked_loss.py` check them.

- `selective` stores attention and every second matrix product, in the order of a block's forward, and recomputes the
  rest. The plan counts half of a block's products as recomputed.
- A loss with `chunks` never holds all scores: with 384 tokens over 997 classes in 7 parts, the peak falls by more than
  1.5 times the scores in float32. Its memory counts as activations, since the head's layer computes it.
- Classes are those at the moment of the total peak. So `loss` may be a few bytes (the sums of its chunks) if the peak
  is elsewhere in the step.

"""


def main(words: list[str], record: Record | None = None) -> int:
    record = record or Record()
    options, words = {word for word in words if word.startswith("--")}, [each for each in words if each[:2] != "--"]
    if "--anew" in options:
        record.lines.forget()
    if "--size" in options:
        before, size, after = parts_of_page()
        PAGE.write_text(before + at_size() + after)
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
    wrong = [each.name for each in (*results, *recipes) if not each.is_close]
    print(f"{len(results) + len(recipes)} ran, out of bounds: {', '.join(wrong) or 'none'}")
    if not words and "--check" not in options:
        size = parts_of_page()[1] if "--page" in options else at_size()
        PAGE.write_text(page(results, recipes, record.lines.commits(), size))
    return 1 if wrong else 0


def parts_of_page() -> tuple[str, str, str]:
    """Return the page before, in and after the part about large models."""
    before, heading, rest = PAGE.read_text().partition(AT_SIZE)
    size, cells_heading, after = rest.partition(CELLS)
    return before, heading + size, cells_heading + after


def keep(record: Record, result: Result) -> None:
    record.add(result)
    tell(result)


def tell(result: Result) -> None:
    kind, off = result.worst_class
    verdict = "" if result.is_close else "  OUT OF BOUNDS"
    print(f"{result.name}: {result.ratio:.3f}, {kind} off by {off:.1%}, {result.seconds:.1f} s{verdict}", flush=True)


def page(results: Sequence[Result], recipes: Sequence[Result], commits: Sequence[str], size: str) -> str:
    from declarative_train.planner.footprint.forecast import LONG
    from tests.engine.live_bytes import NUM_COUNTED
    from tests.planner.cells import QUICK

    where = (
        f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}, CPU, at {', '.join(commits)}."
    )
    bounds = {"bound": BOUND, "class_bound": CLASS_BOUND, "small": SMALL}
    off = [abs(each.ratio - 1) for each in (*results, *recipes)]
    titan = re.findall(r"^\| \d+ \| .* \| (\d\.\d+) \|$", size, re.M)
    cost = re.findall(r"^\| 405B.*?\| ([\d.]+ s) \|", size, re.M)
    head = HEAD.format(
        where=where,
        quick=len(QUICK),
        long=LONG - 1,
        counted=NUM_COUNTED,
        num=len(results),
        num_shipped=len(recipes),
        most=f"{max(off):.1%}",
        near=sum(each < 0.01 for each in off),
        all=len(off),
        titan=f"{min(titan)} to {max(titan)}",
        cost=f"{min(cost)} to {max(cost)}",
        **bounds,
    )
    too_large = f"{' and '.join(f'`{each}`' for each in TOO_LARGE)} is too large for ranks on the measuring machine."
    shipped = ["## Shipped recipes", "", too_large, "", table(recipes), ""]
    run = f"{len(results)} of the {len(list(cells()))} cells were run."
    return "\n".join([head, *shipped, AUTO + SAVED + size, CELLS, "", run, "", table(results), ""])


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
