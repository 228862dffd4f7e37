"""`make planner`: run every cell and the comparisons at size, and write docs/planner.md.

python -m tests.planner [WORDS...]     only cells whose name holds the words; the page is not written then
python -m tests.planner --anew         forget what runs/planner.jsonl holds; else what stands there is not run again
python -m tests.planner --page         run nothing: the page of what stands there
python -m tests.planner --size         only what is about large models: the end of the page, anew
python -m tests.planner --check        write no page, fail where one is out of its bounds
"""

from __future__ import annotations

import platform
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

HEAD = """# The planner's memory, held against real ranks

The memory that `dtrain plan` shows is not reckoned: one rank of each kind makes a step of the real engine on tensors
without memory (torch's fake tensors, and a process group that answers nothing), and all that lives is counted, the loss
included. Of more than {long} equal blocks in a row, 3 and then 4 are tried, of many microbatches three smaller numbers,
and the rest follows; where a block more is not one piece more of each pass (dp, pipelines without bubbles), all are
tried. This page holds it against the live bytes of real ranks (gloo, CPU), counted in their second step by the same
rule (`planner/footprint/live_bytes.py`): each storage from the operation that makes it until it goes. All figures are
of runs, made by `make planner`, which goes on where it was stopped; {quick} of the cells run in `make test`,
all and the shipped recipes in `make test-long`.

{where}

Bounds: {bound:.0%} of all together, {class_bound:.0%} of a class that holds more than {small:.0%}. Of several ranks the
one furthest off is shown.

What is not in it: what a kernel takes for a moment, the rounding and the fragments of CUDA's allocator, NCCL's buffers,
CUDA's own context, what `compile` saves or keeps, metrics and evaluations. A training set that a run will keep on its
GPU is counted beside the step where the plan knows the GPU, and anew when the run begins, which knows what is free
then: the steps come first, and whether a plan fits does not depend on it. On a GPU nothing of this page has been
measured yet. Where the device is a GPU the trace still chooses torch's CPU kernels.

Ranks on the CPU talk over gloo, which computes in threads of its own. Such a thread holds what it carried until it
comes to run again, though the collective is done: the copy of a unit's gradients that a reduce-scatter makes, or what
an all-gather was of. On a busy machine they are now and then still there in the operations that follow.
`vit, fsdp 2, bf16, none` has 0.40 MB gathered at its peak, and in 5 of 118 steps, at a load of 12 to 17 on 2 cores,
0.60 or 0.65 MB (2.83 and 2.88 MB together in place of 2.73). That can only add, so of {counted} counted steps the least
stands here; a run on the CPU counts one step, and may meet it. On a GPU no such copy is made.

An lstm's workspace, which torch calls empty on tensors without memory, is asked of oneDNN's own kernel at a small size
and carried on (within 2%). Where a step cannot be tried the plan says so, with the reason: its figures are derived from
shapes then.
"""


AUTO = """## What `auto` tries

There are too many candidates to trace them all. Their memory is estimated: shards of parameters, gradients and
optimizer state by the layout, the microbatches that wait in a pipeline by the closed form of its schedule (equal to
the grid of torch's own one: `tests/planner/test_schedule_estimates.py`), what each of them keeps on the scale of one
trace of the sharded model, and the room for all that a stage receives. Then what would be taken if everything fitted
that no figure rules out is traced, until it fits. Ruled out is what the update alone has no room for, what a trace
found too large, and what is estimated at more than 1.25 times the room; at more than 1.1 times, where a pipeline of
the same kind with other microbatches was traced, which tells how far off the estimate is. What is found is then what
tracing all would find (`tests/planner/test_auto_search.py`: a llama and an LSTM on 2 GPUs and a llama on 4, in rooms of
every size; there and for a ViT and a ResNet on 2 GPUs the estimates were 0.75 to 1.19 of the trace).

It can still miss: where an estimate is further off than these bounds, and where about 20 s of the processor, reckoned
by the number of calls so that the same recipe gives the same plan everywhere, are used up. The plan then names what
would be faster and was not tried, and a mode that is written is always traced itself. Where even the smallest
estimates do not fit, four of them are tried before `auto` says so. The times that it ranks by are estimates without a
trace.

"""


SAVED = """## What recomputation and chunks save

See the rows `llama, single, fp32`; `tests/engine/test_selective.py` and `tests/engine/test_chunked_loss.py` hold
them. `selective` keeps attention and every second product, in the order of a block's forward, and computes the rest
once more: the plan reckons with half of a block's products. A loss with `chunks` never holds all scores: with 384
tokens over 997 classes in 7 parts the step's peak is lower by more than 1.5 times the scores in float32. What it holds
counts as activations, since the head's layer computes it.

A class is what it holds when all together are the most. So `loss` may be a few bytes, the sums of its chunks, where the
peak is elsewhere in the step.
"""


def main(words: list[str], record: Record | None = None) -> int:
    record = record or Record()
    options, words = {word for word in words if word.startswith("--")}, [each for each in words if each[:2] != "--"]
    if "--anew" in options:
        record.lines.forget()
    if "--size" in options:
        begin = PAGE.read_text().partition(AT_SIZE)[0]
        PAGE.write_text(begin + at_size())
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
        size = PAGE.read_text()[PAGE.read_text().index(AT_SIZE) :] if "--page" in options else at_size()
        PAGE.write_text(page(results, recipes, record.lines.commits(), size))
    return 1 if wrong else 0


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
    head = HEAD.format(where=where, quick=len(QUICK), long=LONG - 1, counted=NUM_COUNTED, **bounds)
    off = [abs(each.ratio - 1) for each in (*results, *recipes)]
    within = f"The furthest off is {max(off):.1%}, {sum(each < 0.01 for each in off)} are within 1%."
    left_out = f"{' and '.join(f'`{each}`' for each in TOO_LARGE)} is too large for ranks here."
    said = f"{len(results)} of the {len(list(cells()))} cells stand here, and {len(recipes)} rows of shipped recipes."
    said = f"{said} {left_out} {within}"
    shipped, every = ["## Shipped recipes", "", table(recipes), ""], ["## Cells", "", table(results), ""]
    return "\n".join([head, said, "", *shipped, *every, AUTO + SAVED, size])


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
