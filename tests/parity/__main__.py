"""`make parity`: run every cell of the table and write docs/parity.md.

python -m tests.parity [WORDS...]     only cells whose name contains the words; the page is not written
python -m tests.parity --anew         run everything; otherwise results in runs/parity.jsonl are not run again
"""

from __future__ import annotations

import platform
import sys
import traceback
from collections import defaultdict
from collections.abc import Iterable
from datetime import date
from typing import Any

import torch

from tests.parity.cells import MIXING, Cell, cells
from tests.parity.measure import BOUND, Result, measure
from tests.record import ROOT, Lines

PAGE = ROOT / "docs" / "parity.md"
RECORD = ROOT / "runs" / "parity.jsonl"

HEAD = """# Parity

Every mode computes the same gradients as a plain torch loop, up to rounding. A cell shows the largest relative
difference of any parameter's gradient, over 3 steps in float64:
`|d| / max(|g_ref| of the parameter, 1e-6 of |g_ref| of the model)`. The bound is {bound:.0e}. The reference is the
whole batch in one process, with torch's own mean loss and SGD. Every rank is a real process; the samples of each step
are the same, in the same order. `make parity` makes this page and continues where it was stopped; some of the cells run
in `make test`, more in `make test-long`.

{where}

- **Rows.** even: every batch is full. uneven: the last batch has 13 rows instead of 32, which no number of ranks
  divides. masked: uneven, and none, some or all targets of a row are ignored.
- **Graphs.** plain: embedding, 8 residual blocks, head. skip: connections over several stages, attention with a mask.
  terms: three losses with three denominators. mixes: batch norm over groups of N samples of the global batch. contrast:
  InfoNCE over such groups. averaged: `kto` and `sample_mean` over them.
  recurrent: LSTM and GRU, and pipeline stages that begin with a transpose or a mean.
  convolutions: over images, with channels-last weights in the modes that use them. optimizers: three of them, with lr
  scales and weight decay by parameter. lora and dora: adapters next to frozen weights, and stages without trained
  parameters. chunked: the loss with the head inside of a block, in 3 parts. shared: a tie from the first node to the
  last, another tie, and a block that is called twice, with clipping; in a pipeline the stages hold copies. packed:
  texts in one row that do not see each other. divided: heads, gated layers, a table and its tied head; adapted: the
  same with LoRA and DoRA. gpt, llama, gemma, bert, vit, mlp: small models of these families. moe: mixtures of experts
  with balance losses, and a bias that balances them; mixtral: the block of this name, with norms of queries and keys as
  in Qwen 3 MoE.
- **tensor** divides layers over ranks; **sequence** also the tokens between them. **context** divides the positions of
  a sequence, whose keys are gathered; in a **ring**, they travel around the ranks. **expert** divides the experts.
- **ddp** uses torch's DistributedDataParallel. With a pipeline, gradients are averaged after the backward, in large
  messages.
"""


def main(words: list[str], record: Lines | None = None) -> int:
    """Every result is kept as it comes, because the table takes an hour and more: a call that is stopped goes on."""
    record = record or Lines(RECORD)
    if "--anew" in words:
        record.forget()
    words = [word for word in words if word != "--anew"]
    chosen = [cell for cell in cells() if all(word in cell.name for word in words)]
    failed: list[str] = []
    for number, cell in enumerate(chosen, 1):
        if cell.name in record.by_name():
            continue
        try:
            result = measure(cell)
        except Exception:
            failed.append(cell.name)
            print(f"{number}/{len(chosen)} {cell.name}: did not run\n{traceback.format_exc()}", flush=True)
            continue
        record.append(line_of(result))
        verdict = "" if result.is_equal else f"  WRONG: {result.parameter} in step {result.step}"
        print(f"{number}/{len(chosen)} {cell.name}: {result.difference:.1e}{verdict}", flush=True)
    lines = record.by_name()
    results = [result_of(cell, lines[cell.name]) for cell in chosen if cell.name in lines]
    wrong = [result.cell.name for result in results if not result.is_equal]
    print(f"{len(results)} of {len(chosen)} cells ran, over {BOUND:.0e}: {', '.join(wrong) or 'none'}")
    if not words and not failed:
        PAGE.write_text(page(results, record.commits()), "utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return 1 if wrong or failed else 0


def line_of(result: Result) -> dict[str, Any]:
    return {"name": result.cell.name} | {
        key: getattr(result, key) for key in ("difference", "parameter", "step", "seconds")
    }


def result_of(cell: Cell, line: dict[str, Any]) -> Result:
    return Result(cell, line["difference"], line["parameter"], line["step"], line["seconds"])


def page(results: Iterable[Result], commits: list[str]) -> str:
    found = {result.cell: result for result in results}
    where = f"{date.today()}, torch {torch.__version__}, CPU and gloo, {platform.machine()}, at {', '.join(commits)}."
    lines = [HEAD.format(bound=BOUND, where=where)]
    plain = [cell for cell in found if cell.model == "plain" and not cell.options]
    columns = list(dict.fromkeys((cell.accumulation, cell.rows) for cell in plain))
    lines += ["## Every way to run", ""]
    lines.append(f"| way | {' | '.join(f'{rows}, accumulation {count}' for count, rows in columns)} |")
    lines.append(f"|---|{'---|' * len(columns)}")
    by_way: dict[str, dict[tuple[int, str], Result]] = defaultdict(dict)
    for cell in plain:
        by_way[cell.way][cell.accumulation, cell.rows] = found[cell]
    for way, row in by_way.items():
        lines.append(f"| {way} | {' | '.join(f'{row[column].difference:.1e}' for column in columns)} |")
    others = [cell for cell in found if cell not in plain]
    lines += ["", "## Other graphs and settings", "", "| way | graph | accumulation | rows | difference |"]
    lines.append("|---|---|---|---|---|")
    for cell in others:
        lines.append(
            f"| {cell.way} | {graph_of(cell)} | {cell.accumulation} | {cell.rows} | {found[cell].difference:.1e} |"
        )
    return "\n".join([*lines, ""])


def graph_of(cell: Cell) -> str:
    words = f"{cell.model} over {cell.over}" if cell.model in MIXING else cell.model
    return f"{words}, {cell.options}" if cell.options else words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
