"""Text of `dtrain fits`: one screen of 80 columns."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.core.amounts import amount, format_count, time_in_words
from declarative_train.plan.predictions import TAKEN
from declarative_train.planner.text.describe import mode_in_words
from declarative_train.planner.text.model import columns, section
from declarative_train.tools.fits.certainty import MEMORY_ERROR, runtime_bytes, step_interval

if TYPE_CHECKING:
    from declarative_train.tools.fits.answer import Change, Fits

WIDTH = 80
MOST_TERMS, MOST_CHANGES, MOST_LAYOUTS = 4, 5, 4
_CHANGE, _LAYOUT = 42, 50  # largest number of letters of a name


def describe(found: Fits) -> str:
    """Return the text that `dtrain fits` prints for its result, without a final newline."""
    parts = [
        "\n".join(_head(found)),
        section("largest parts of it", _terms(found)),
        section("what to change first", _changes(found)),
        section("layouts that fit, the fastest first", _layouts(found)),
        section("time, energy, money", _rates(found)),
        section("how certain", _certainty(found)),
    ]
    return "\n\n".join(part for part in parts if part)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH - 2)


def _head(found: Fits) -> list[str]:
    plan, verdict = found.plan, "fits" if found.fits else "DOES NOT FIT"
    through = f" ({found.through})" if found.through else ""
    own = sum(item.num_elements for item in plan.parameters if item.tie is None)
    trained = sum(item.num_elements for item in plan.parameters if item.tie is None and not item.frozen)
    size = f"{amount(own)} parameters" + (f", {amount(trained)} of them trained" if trained < own else "")
    total, mode = found.estimate.device_memory_bytes or 0, mode_in_words(replace(plan.layout, device="cuda"))
    sample = f"{format_count(plan.batch.global_batch_size, 'sample')} a step" + (
        f" of {found.length:,} tokens" if found.length else ""
    )
    lines = [
        f"{plan.name}{through} {verdict} on {found.num_gpus:,} x {found.hardware.name}:",
        f"{amount(found.memory_bytes, 'B')} of {amount(found.usable_bytes, 'B')} usable on each "
        f"({amount(total, 'B')} less 10%).",
        f"{size}, {sample}, {plan.training.precision}, {mode}, activation checkpointing "
        f"{plan.training.recomputation.policy}.",
        *(f"{note}." for note in found.notes),
    ]
    return textwrap.wrap(" ".join(lines), WIDTH)


def _terms(found: Fits) -> list[str]:
    memory = max(found.plan.memory, key=lambda each: each.of_step)
    names = ("parameters", "gradients", "optimizer", "gathered", "activations", "loss", "data")
    sizes = sorted(((getattr(memory, name), name) for name in names), reverse=True)
    shown = [(name, size) for size, name in sizes[:MOST_TERMS] if size]
    return columns([[name, amount(size, "B"), f"{size / memory.of_step:.0%}"] for name, size in shown], numbers=False)


def _changes(found: Fits) -> list[str]:
    rows = [[_cut(each.settings, _CHANGE), *_differences(each, found)] for each in found.changes[:MOST_CHANGES]]
    return columns([["", "memory", "step", ""], *rows], numbers=False) if rows else []


def _differences(each: Change, found: Fits) -> list[str]:
    memory = each.memory_bytes - found.memory_bytes
    before, after = found.estimate.step_s, each.step_s
    time = "" if before is None or after is None else _signed_time(after - before, before)
    return [f"{'-' if memory < 0 else '+'}{amount(abs(memory), 'B')}", time, "" if each.fits else "does not fit"]


def _signed_time(seconds: float, step_s: float) -> str:
    if abs(seconds) < 0.005 * step_s:
        return "the same"
    return f"{'-' if seconds < 0 else '+'}{time_in_words(abs(seconds))}"


def _layouts(found: Fits) -> list[str]:
    if found.num_gpus == 1:
        return []
    if not found.layouts:
        return ["none was found"]
    choice = found.plan.choice
    taken = [] if choice is None else [each.parallelism for each in choice.candidates if each.verdict == TAKEN]
    planned = taken[0] if taken else found.plan.layout.mode
    rows = [
        [
            _cut(each.parallelism, _LAYOUT),
            amount(each.memory_bytes or 0, "B"),
            each.step,
            "above" if each.parallelism == planned else "",
        ]
        for each in found.layouts[:MOST_LAYOUTS]
    ]
    return columns([["", "memory", "step", ""], *rows], numbers=False)


def _rates(found: Fits) -> list[str]:
    step_s, per_second, hours = found.estimate.step_s, found.per_second, found.hours
    if step_s is None or per_second is None or hours is None:
        return [f"the speed of {found.hardware.name} in {found.plan.training.precision} is unknown"]
    day = amount(per_second * 86400)
    unit = f"{found.unit}s"
    rows = [["step", f"{time_in_words(step_s)}, MFU {found.estimate.mfu or 0.0:.0%}"]]
    rows.append(["speed", f"{amount(per_second)} {unit}/s, {day} {unit} a day"])
    rows.append([f"{amount(found.budget)} {unit}", f"{_hours(hours)}, {amount(hours * found.num_gpus)} GPU hours"])
    if found.energy_kwh is not None:
        rows.append(["energy", f"{amount(found.energy_kwh * 1000, 'Wh')} of the GPUs at full power"])
    if found.cost is not None:
        rows.append(["money", f"{found.cost:,.2f} at {found.price:g} for a GPU hour"])
    return columns(rows, numbers=False)


def _hours(hours: float) -> str:
    return f"{hours / 24:,.3g} days" if hours >= 48 else time_in_words(hours * 3600)


def _certainty(found: Fits) -> list[str]:
    low, high = step_interval(found.plan)
    more = amount(runtime_bytes(found.plan), "B")
    lines = _wrap(
        f"memory: within {MEMORY_ERROR:.0%} of live bytes on a CPU; a GPU needs about {more} more for CUDA, its "
        "libraries and NCCL; the 10% are for fragmentation"
    )
    if found.estimate.step_s is not None:
        span = f"{time_in_words(found.estimate.step_s * low)} to {time_in_words(found.estimate.step_s * high)}"
        lines += _wrap(f"time: a step takes {span} in 9 of 10 cases; times, energy and money vary with it")
    return lines


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 3]}..."
