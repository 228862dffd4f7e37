"""Plans of one recipe for several numbers of GPUs -> when more of them stop paying, as text.

Two ends are told, and the truth lies between: communication that runs beside computing as far as it can, and
communication that everything waits for. Where it lies depends on the kernels, which share the processors and the
memory with the transfers, and can only be measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from declarative_train.plan.plan import Plan
from declarative_train.plan.predicted import EstimatePlan
from declarative_train.plan.text.tables import columns
from declarative_train.terms.amounts import amount, counted, time_in_words

PAYS = 1.4  # times as fast with twice as many devices: less does not pay


class Scaled(NamedTuple):
    """`plan` with an estimate that has a time; None: `why` there is none."""

    num_gpus: int
    plan: Plan | None
    why: str = ""


def describe_scale(found: Sequence[Scaled]) -> str:
    """A row for each number of GPUs, the speed beside that of the first row; then what is assumed."""
    rows = [["GPUs", "mode", "rows each", "memory", "step", "speed", "of ideal", ""]]
    first = next((each for each in found if each.plan is not None), None)
    before, refused = None, list[str]()
    for each in found:
        if each.plan is None or first is None or first.plan is None:
            refused.append(f"{counted(each.num_gpus, 'GPU')}: {each.why}")
            continue
        rows.append(_row(each, each.plan, first, first.plan, before))
        before = each
    if first is None:
        return "\n".join([_head(first), *refused])
    return "\n".join([_head(first), "", *columns(rows), *refused, "", *_assumed(first)])


def _head(first: Scaled | None) -> str:
    if first is None or first.plan is None or first.plan.estimate is None:
        return "none of these numbers of GPUs can be planned for"
    plan, on = first.plan, first.plan.estimate.hardware
    size = plan.batch.global_batch_size
    return (
        f"{plan.name} on {on}, always {size:,} samples a step; estimated, speed beside {counted(first.num_gpus, 'GPU')}"
    )


def _row(each: Scaled, plan: Plan, first: Scaled, first_plan: Plan, before: Scaled | None) -> list[str]:
    best, worst = ends(plan)
    first_best, first_worst = ends(first_plan)
    ideal = each.num_gpus / first.num_gpus
    fast, slow = first_best / best, first_worst / worst
    estimate = plan.estimate
    assert estimate is not None
    fits = estimate.device_memory_bytes is None or estimate.memory_bytes <= estimate.device_memory_bytes
    return [
        f"{each.num_gpus:,}",
        plan.layout.mode,
        f"{plan.batch.global_batch_size / plan.batch.data_parallel_size:g}",
        amount(estimate.memory_bytes, "B"),
        _between(time_in_words(best), time_in_words(worst)),
        _between(f"{fast:.3g}", f"{slow:.3g}"),
        _between(f"{fast / ideal:.0%}", f"{slow / ideal:.0%}"),
        "too large" if not fits else "" if before is None else verdict(before, each),
    ]


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} .. {high}"


def ends(plan: Plan) -> tuple[float, float]:
    """Seconds of a step if communication hides as far as it can, and if nothing of it does."""
    estimate = plan.estimate
    assert estimate is not None
    assert estimate.step_s is not None
    return estimate.step_s, max(estimate.step_s, estimate.step_s - (estimate.exposed_s or 0.0) + sent_s(estimate))


def sent_s(estimate: EstimatePlan) -> float:
    return sum(each.seconds or 0.0 for each in estimate.transfers)


def verdict(before: Scaled, each: Scaled) -> str:
    """Whether steps are `PAYS` times as fast for each doubling of the devices since the row before."""
    assert before.plan is not None
    assert each.plan is not None
    needed = PAYS ** math.log2(each.num_gpus / before.num_gpus)
    faster = [then / now for then, now in zip(ends(before.plan), ends(each.plan), strict=True)]
    if min(faster) >= needed:
        return "pays"
    return "pays if hidden" if max(faster) >= needed else "does not pay"


def _assumed(first: Scaled | None) -> list[str]:
    lines = [
        "step, speed: from communication hidden behind computing as far as it can be, to none hidden.",
        f"pays: from the row above, steps are at least {PAYS} times as fast for each doubling of the GPUs.",
    ]
    if first is not None and first.plan is not None and first.plan.estimate is not None:
        lines += [f"assumed: {each}" for each in first.plan.estimate.assumptions]
    return lines
