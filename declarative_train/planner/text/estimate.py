"""Text of a plan's estimate, its memory, and the choice of `parallelism: auto`: figures first, then their assumptions.
Also the table of one recipe on several numbers of GPUs.

The table has two bounds for the step time: communication overlaps with computing as far as possible, or not at all. The
real time is between them, because transfers share processors and memory with kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from declarative_train.core.amounts import amount, format_count, list_names, time_in_words
from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import TAKEN, CandidatePlan, ChoicePlan, EstimatePlan, MemoryPlan, TransferPlan
from declarative_train.planner.text.model import columns

_MOST_CANDIDATES = 16
_LINKS = {"node": "inside the node", "network": "between nodes"}


def describe_estimate(plan: Plan) -> list[str]:
    estimate = plan.estimate
    if estimate is None:
        return []
    rows = [["operations", _operations(plan)], ["memory", _memory(estimate)]]
    rows += [[each.what, _transfer(each)] for each in estimate.transfers]
    if estimate.step_s is not None:
        rows.append(["step", _step(estimate)])
        assert estimate.low_s is not None
        assert estimate.high_s is not None
        bounds = [time_in_words(each) for each in (estimate.low_s, estimate.high_s)]
        rows.append(["interval", f"{bounds[0]} to {bounds[1]}: 90 of 100 measured steps"])
        rows.append(["data", _data(plan, estimate)])
        rows.append(["throughput", f"{amount(plan.batch.global_batch_size / estimate.step_s)} samples/s"])
        rows.append(["utilisation", f"MFU {estimate.mfu:.1%}, HFU {estimate.hfu:.1%}"])
        steps = format_count(plan.training.num_steps, "step")
        rows.append(
            ["run", f"{steps} in {time_in_words(plan.training.num_steps * estimate.step_s)}, without evaluation"]
        )
    return [*columns(rows, numbers=False), *(f"assumed: {each}" for each in estimate.assumptions)]


def estimate_in_words(estimate: EstimatePlan) -> str:
    assert estimate.step_s is not None
    return f"{time_in_words(estimate.step_s)} a step on {estimate.hardware}, MFU {estimate.mfu:.1%}"


def _operations(plan: Plan) -> str:
    flops, size = plan.flops, plan.batch.global_batch_size
    shown = f"{amount(flops.model * size, 'FLOP')} a step, forward and backward: {amount(flops.model, 'FLOP')} a sample"
    return shown + (f"; {amount(flops.recomputed * size, 'FLOP')} again" if flops.recomputed else "")


def _memory(estimate: EstimatePlan) -> str:
    there = estimate.device_memory_bytes
    return amount(estimate.memory_bytes, "B") + (f" of {amount(there, 'B')}" if there is not None else "")


def _transfer(each: TransferPlan) -> str:
    time = "" if each.seconds is None else f", {time_in_words(each.seconds)}"
    return f"{amount(each.bytes_sent, 'B')} a step from each device, {_LINKS[each.link]}{time}"


def _step(estimate: EstimatePlan) -> str:
    parts = {
        "computing": estimate.compute_s,
        "waiting for others": estimate.exposed_s,
        "pipeline idle": estimate.bubble_s,
        "updating": estimate.update_s,
        "waiting for data": _waiting_s(estimate),
    }
    shown = " + ".join(f"{time_in_words(seconds)} {what}" for what, seconds in parts.items() if seconds)
    return f"{time_in_words(estimate.step_s or 0.0)} = {shown}"


def _waiting_s(estimate: EstimatePlan) -> float:
    parts = (estimate.compute_s, estimate.exposed_s, estimate.bubble_s, estimate.update_s)
    computed_s = sum(each or 0.0 for each in parts)
    return max(0.0, (estimate.data_s or 0.0) - computed_s)


def _data(plan: Plan, estimate: EstimatePlan) -> str:
    """Return as text how long it takes to make the batches of a step, and whether the step waits for them; or that the
    training set stays on the GPU."""
    if not estimate.data_s:
        return "the training set stays on the GPU"
    workers = plan.data.workers
    by = format_count(workers, "worker") if workers else "one thread"
    limits = "which limits the step: raise data.workers" if _waiting_s(estimate) else "less than a step"
    return f"{time_in_words(estimate.data_s or 0.0)} to make a rank's samples by {by}, {limits}"


def describe_choice(plan: Plan) -> list[str]:
    choice = plan.choice
    if choice is None:
        return []
    possible = sorted((each for each in choice.candidates if each.memory_bytes is not None), key=_sort_key)
    rows = [["candidate", "memory", "step", "verdict"], *(_candidate(each) for each in possible[:_MOST_CANDIDATES])]
    refused = [f"rejected: {names}: {verdict}" for verdict, names in _group_rejected(choice).items()]
    assumed = [f"assumed: {each}" for each in choice.assumptions]
    return [choice.reason, *columns(rows), *refused, *_not_shown(choice), *_describe_traces(choice), *assumed]


def _describe_traces(choice: ChoicePlan) -> list[str]:
    if not choice.num_traced:
        return []
    text = f"traced on fake tensors: {format_count(choice.num_traced, 'candidate')}; the others are estimated"
    if not choice.untried:
        return [text]
    left = f"would be faster, but do not fit by the estimate, and were not traced: {list_names(choice.untried, 1)}"
    return [f"{text}", f"{left} (to trace one, set it as `parallelism`)"]


def _sort_key(each: CandidatePlan) -> tuple[bool, float]:
    """Return a sort key that puts the chosen candidate first and the others in order of step time. Without times, the
    order stays."""
    return each.verdict != TAKEN, each.step_s or 0.0


def _group_rejected(choice: ChoicePlan) -> dict[str, str]:
    """Return a dict from error text to the names of the candidates that were rejected with this error."""
    found: dict[str, list[str]] = {}
    for each in choice.candidates:
        if each.memory_bytes is None:
            found.setdefault(each.verdict, []).append(each.parallelism)
    return {verdict: list_names(names, 1) for verdict, names in found.items()}


def _candidate(each: CandidatePlan) -> list[str]:
    memory = "" if each.memory_bytes is None else amount(each.memory_bytes, "B")
    return [each.parallelism, memory, each.step, each.verdict]


def _not_shown(choice: ChoicePlan) -> list[str]:
    """Return a line with the number of candidates that the table leaves out; [] if it leaves out none. Of candidates
    that differ only in schedule or microbatches, the table shows one. It has at most `_MOST_CANDIDATES` rows."""
    possible = sum(each.memory_bytes is not None for each in choice.candidates)
    rest = choice.num_considered - len(choice.candidates) + max(0, possible - _MOST_CANDIDATES)
    return [f"{format_count(rest, 'more candidate')}, slower or too large"] if rest else []


def describe_memory(plan: Plan) -> list[str]:
    gathering = ["gathered"] if plan.layout.is_sharded else []
    head = ["", "parameters", "gradients", "optimizer", *gathering, "activations", "loss", "data", "together"]
    rows = memory(plan)
    held = max(each.held for each in rows)
    note = [f"data includes {amount(held, 'B')} of the training set, which fits on the device"] if held else []
    return [*columns([head, *(_row(each, plan.layout.is_sharded) for each in rows)]), *note]


def memory_title(plan: Plan) -> str:
    return f"memory per device, {'traced' if plan.memory and plan.memory[0].is_traced else 'estimated'}"


def not_traced(plan: Plan) -> list[str]:
    return [f"not traced: {plan.not_traced}"] if plan.not_traced else []


def format_largest_memory(plan: Plan) -> str:
    """Return, as text, the memory of the device that needs most."""
    return amount(max(each.total for each in memory(plan)), "B")


def memory(plan: Plan) -> Sequence[MemoryPlan]:
    if plan.memory:
        return plan.memory
    from declarative_train.planner.estimate.memory import memory_of  # imports torch, which an editor does not load
    from declarative_train.planner.estimate.model import facts_of
    from declarative_train.planner.estimate.placement import placement_of

    model = facts_of(plan)
    return memory_of(model, placement_of(plan.layout, plan.batch, tuple(model.nodes)))


def _row(each: MemoryPlan, is_sharded: bool) -> list[str]:
    gathered = [each.gathered] if is_sharded else []
    cells = [
        each.parameters,
        each.gradients,
        each.optimizer,
        *gathered,
        each.activations,
        each.loss,
        each.data + each.held,
    ]
    return [each.name, *(amount(cell, "B") for cell in (*cells, each.total))]


PAYS = 1.4  # minimum speedup from twice as many devices


class ScalingRow(NamedTuple):
    """Row of the scaling table, for one number of GPUs. `plan`: the plan with its estimated time. If it is None, `why`
    is the reason."""

    num_gpus: int
    plan: Plan | None
    why: str = ""


def scale_data(row: ScalingRow) -> dict[str, object]:
    """Return a row of the scaling table as a JSON object: the predicted seconds of a step and samples per second, or
    the reason why there are none."""
    if row.plan is None or row.plan.estimate is None or row.plan.estimate.step_s is None:
        return {"gpus": row.num_gpus, "step_s": None, "why": row.why}
    step_s = row.plan.estimate.step_s
    rate = row.plan.batch.global_batch_size / step_s
    return {"gpus": row.num_gpus, "mode": row.plan.layout.mode, "step_s": step_s, "samples_per_s": rate}


def describe_scale(found: Sequence[ScalingRow]) -> str:
    """Return the scaling table as text, with a row for each number of GPUs and the assumptions at the end. Speeds are
    relative to the first row that has a plan."""
    rows = [["GPUs", "mode", "rows each", "memory", "step", "speed", "of ideal", ""]]
    first = next((each for each in found if each.plan is not None), None)
    before, refused = None, list[str]()
    for each in found:
        if each.plan is None or first is None or first.plan is None:
            refused.append(f"{format_count(each.num_gpus, 'GPU')}: {each.why}")
            continue
        rows.append(_scale_row(each, each.plan, first, first.plan, before))
        before = each
    if first is None:
        return "\n".join([_head(first), *refused])
    return "\n".join([_head(first), "", *columns(rows), *refused, "", *_list_assumptions(first)])


def _head(first: ScalingRow | None) -> str:
    if first is None or first.plan is None or first.plan.estimate is None:
        return "no plan is possible for these numbers of GPUs"
    plan, on = first.plan, first.plan.estimate.hardware
    size = plan.batch.global_batch_size
    speed = f"speed relative to {format_count(first.num_gpus, 'GPU')}"
    return f"{plan.name} on {on}, always {size:,} samples a step; estimated, {speed}"


def _scale_row(
    each: ScalingRow, plan: Plan, first: ScalingRow, first_plan: Plan, before: ScalingRow | None
) -> list[str]:
    best, worst = step_bounds(plan)
    first_best, first_worst = step_bounds(first_plan)
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


def step_bounds(plan: Plan) -> tuple[float, float]:
    """Return (lower, upper) bound of the step time in seconds. At the lower bound, communication overlaps with
    computing as far as possible. At the upper bound, it does not overlap at all."""
    estimate = plan.estimate
    assert estimate is not None
    assert estimate.step_s is not None
    return estimate.step_s, max(estimate.step_s, estimate.step_s - (estimate.exposed_s or 0.0) + transfer_s(estimate))


def transfer_s(estimate: EstimatePlan) -> float:
    return sum(each.seconds or 0.0 for each in estimate.transfers)


def verdict(before: ScalingRow, each: ScalingRow) -> str:
    """Return in words whether it pays to use the devices of row `each` instead of the fewer devices of row `before`.

    pays             each doubling of the devices makes a step at least `PAYS` times as fast
    pays if hidden   the same, but only if communication overlaps with computing as far as possible
    does not pay     otherwise
    """
    assert before.plan is not None
    assert each.plan is not None
    needed = PAYS ** math.log2(each.num_gpus / before.num_gpus)
    faster = [then / now for then, now in zip(step_bounds(before.plan), step_bounds(each.plan), strict=True)]
    if min(faster) >= needed:
        return "pays"
    return "pays if hidden" if max(faster) >= needed else "does not pay"


def _list_assumptions(first: ScalingRow | None) -> list[str]:
    lines = [
        "step, speed: from full to no overlap of communication with computation.",
        f"pays: steps are at least {PAYS} times as fast as in the row above per doubling of the GPUs.",
    ]
    if first is not None and first.plan is not None and first.plan.estimate is not None:
        lines += [f"assumed: {each}" for each in first.plan.estimate.assumptions]
    return lines
