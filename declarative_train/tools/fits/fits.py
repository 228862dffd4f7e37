"""Python API of `dtrain fits`: whether a recipe or a published model fits on GPUs, what can be changed, which layouts
fit, and what training costs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from declarative_train.app.api.errors import WRONG_USE, DtrainError
from declarative_train.components.hardware import HARDWARE
from declarative_train.tools.fits.answer import Change, Fits, may_fit, peak_bytes, usable_bytes
from declarative_train.tools.fits.data import as_data
from declarative_train.tools.fits.source import (
    MOST_GPUS,
    PER_NODE,
    Settings,
    Source,
    check_number,
    find_gpu,
    source_of_folder,
    source_of_recipe,
)
from declarative_train.tools.fits.target import Task
from declarative_train.tools.fits.text import describe

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.plan.predictions import CandidatePlan

GPU, COUNT = "h100-sxm", 8  # defaults for a published model
BUDGET = 1e9  # tokens, or samples of a model without tokens
AUTO = "auto"
NO_MODE_FITS = "P108"
NEXT_POLICIES = {"none": ("selective", "blocks"), "selective": ("blocks", "none"), "blocks": ("selective",)}
CHUNKS = 8
LEAST_LOSS = 0.05  # share of the memory from which on a loss in chunks is tried

Tried = tuple[int, float | None]


def fits(
    target: str | os.PathLike[str],
    *,
    task: Task | None = None,
    gpu: str | None = None,
    count: int | None = None,
    length: int | None = None,
    batch: int | None = None,
    budget: float = BUDGET,
    price: float | None = None,
    set: Mapping[str, object] | None = None,
) -> Fits:
    """Estimate whether a training run fits on GPUs, which layouts fit, and time, energy and cost. Raises DtrainError.

    `target`  a recipe, or the folder (with config.json) or cached hub id of a published model
    `task`    for a published model: full (the default), lora, qlora or pretrain
    `gpu`     a name of `dtrain list hardware` or of torch, or words of it, such as `a100-40`
    `length`  for a published model: tokens of a sample
    `batch`   samples of a step on all GPUs
    `budget`  tokens to train on, or samples if the model does not read tokens
    `price`   price of one GPU for an hour
    `set`     dict from the dotted path of a key to the value that replaces the recipe's
    """
    written = os.fspath(target)
    hardware = None if gpu is None else find_gpu(gpu)
    check_number("count", count, MOST_GPUS)
    check_number("batch", batch, None)
    check_number("length", length, None)
    settings = dict(set or {})
    if os.path.isfile(written):
        if task is not None or length is not None:
            raise DtrainError("a recipe has its own task and lengths; --task and --length are for a published model",
                              exit_code=WRONG_USE)  # fmt: skip
        source = source_of_recipe(written, hardware, count, batch, settings)
    else:
        named = hardware or HARDWARE[GPU]
        source = source_of_folder(written, task or "full", named, count or COUNT, length, batch, settings)
    return _answer(source, budget, price)


def _answer(source: Source, budget: float, price: float | None) -> Fits:
    plan = first_plan(source)
    if plan.estimate is None or plan.estimate.device_memory_bytes is None:
        raise DtrainError("the recipe names no GPU to plan for; help: --gpu h100-sxm, or another of `dtrain list "
                          "hardware`", exit_code=WRONG_USE)  # fmt: skip
    changes, layouts = try_others(source, plan)
    found = Fits(
        target=source.path,
        plan=plan,
        through=source.through,
        notes=source.notes,
        changes=tuple(changes),
        layouts=tuple(layouts),
        hardware=HARDWARE[plan.estimate.hardware],
        budget=budget,
        price=price,
    )
    return replace(found, text=describe(found), data=as_data(found))


def first_plan(source: Source) -> Plan:
    """Return the plan of a recipe. If the recipe has `parallelism: auto` and no layout fits, return the plan that
    shards all parameters over all GPUs. Raises DtrainError for any other error in the recipe."""
    try:
        return source.plan({})
    except DtrainError as error:
        if [each.code for each in error.diagnostics if each.is_error] != [NO_MODE_FITS]:
            raise
        return source.plan({"parallelism": source.sharded})


def try_others(source: Source, plan: Plan) -> tuple[list[Change], list[CandidatePlan]]:
    """Compile the plan's recipe with some changed settings, and in other layouts. Return (changes, layouts). `changes`:
    each change with the resulting memory and step time, the most useful first. `layouts`: those that fit, the fastest
    first; none are tried for a single GPU, or if the plan is much too large."""
    usable = usable_bytes(plan)
    works: dict[str, Callable[[], Any]] = {}
    does_fit = peak_bytes(plan) <= usable
    for words, settings in _changes_of(plan, source, does_fit):
        works[words] = partial(_try_change, source, {"parallelism": axes_of(plan)} | settings)
    if not does_fit and source.smaller is not None:
        works["--task qlora"] = partial(_try_smaller, source.smaller, axes_of(plan))
    if plan.choice is None and plan.layout.num_devices > 1 and may_fit(plan):
        works[AUTO] = partial(_layouts, source)
    found = dict(zip(works, _at_once(list(works.values())), strict=True))
    layouts = found.pop(AUTO, None) or ()
    if plan.choice is not None:
        layouts = plan.choice.candidates
    changes = [
        Change(words, tried[0], tried[1], tried[0] <= usable) for words, tried in found.items() if tried is not None
    ]
    fitting = sorted((each for each in layouts if _does_fit(each)), key=lambda each: each.step_s or 0.0)
    return _in_order(changes, plan, does_fit), fitting


def axes_of(plan: Plan) -> Settings:
    """Return the value of the recipe's key `parallelism` that gives the layout of `plan`. Without a pipeline, the last
    axis of data parallelism has the size `all`, so that the value can also be used with other numbers of GPUs."""
    layout = plan.layout
    sizes = {axis.name: axis.size for axis in layout.mesh}
    data: Settings = {name: size for name, size in sizes.items() if name in ("replicate", "shard")}
    own: Settings = {name: sizes[name] for name in ("expert", "tensor") if name in sizes}
    if layout.context is not None:
        own["context"] = {"size": sizes["context"], "keys": layout.context.keys}
    if layout.pipeline is None:
        inner = list(data)[-1:]  # the last axis gets all other GPUs
        return own | ({"data": data | dict.fromkeys(inner, "all")} if data else {})
    pipeline = layout.pipeline
    stages = {"stages": pipeline.num_stages, "schedule": pipeline.schedule, "microbatches": pipeline.num_microbatches}
    return {"pipeline": stages} | own | ({"data": data} if data else {})


def _changes_of(plan: Plan, source: Source, does_fit: bool) -> Iterator[tuple[str, Settings]]:
    """Yield changes that may save memory or time, each as a text and as settings: activation checkpointing, a loss in
    chunks, gradient accumulation, bf16, another number of GPUs. `does_fit`: whether the unchanged plan fits. If it
    does, fewer GPUs are proposed, else more."""
    training, batch, count = plan.training, plan.batch, plan.layout.num_devices
    for policy in NEXT_POLICIES[training.recomputation.policy]:
        yield f"activation_checkpointing: {policy}", {"training.activation_checkpointing": policy}
    memory = max(plan.memory, key=lambda each: each.of_step)
    terms = plan.objective.terms
    if len(terms) == 1 and memory.loss > LEAST_LOSS * memory.of_step and "chunks" in terms[0].component:
        yield f"loss in {CHUNKS} chunks (objective.loss.chunks)", {"objective.loss.chunks": CHUNKS}
    if not does_fit and batch.microbatch_size > 1 and plan.layout.pipeline is None:
        steps = 2 * batch.accumulation
        yield f"gradient_accumulation_steps: {steps}", {"training.gradient_accumulation_steps": steps}
    if training.precision == "fp32":
        yield "precision: bf16", {"training.precision": "bf16"}
    other = count // 2 if does_fit else count * 2
    if other > 1 and (other <= PER_NODE or other % PER_NODE == 0):
        rows = batch.global_batch_size
        if rows % other == 0:
            yield f"--count {other}", source.on(other)
        elif not does_fit:
            yield f"--count {other} --batch {2 * rows}", source.on(other) | {"training.global_batch_size": 2 * rows}


def _try_change(source: Source, settings: Settings) -> Tried | None:
    """Compile the recipe with changed settings. Return the memory of the plan in bytes and the seconds of its step,
    which are None if unknown. Return None if the settings give no plan."""
    try:
        plan = source.plan(settings)
    except DtrainError:
        return None
    return peak_bytes(plan), None if plan.estimate is None else plan.estimate.step_s


def _try_smaller(make: Callable[[], Source], axes: Settings) -> Tried | None:
    return _try_change(make(), {"parallelism": axes})


def _layouts(source: Source) -> tuple[CandidatePlan, ...]:
    try:
        choice = source.plan({"parallelism": AUTO}).choice
    except DtrainError:
        return ()
    return () if choice is None else choice.candidates


def _does_fit(each: CandidatePlan) -> bool:
    return each.memory_bytes is not None and not each.verdict.startswith("does not fit")


def _in_order(changes: list[Change], plan: Plan, does_fit: bool) -> list[Change]:
    """Return `changes` with the most useful first: those with which the plan fits, then the others, each group by
    memory, ascending. If the unchanged plan fits too (`does_fit`), the first group is sorted by the time that a change
    saves, descending."""
    step_s = 0.0 if plan.estimate is None else plan.estimate.step_s or 0.0

    def key(each: Change) -> tuple[bool, float, int]:
        gains_s = max(0.0, step_s - (each.step_s or step_s)) if does_fit and each.fits else 0.0
        return not each.fits, -gains_s, each.memory_bytes

    return sorted(changes, key=key)


def _at_once(works: list[Callable[[], Any]]) -> list[Any]:
    """Call all functions in `works` at the same time, in child processes. If that fails, call them one after the other
    in this process. Return their results in order."""
    import torch

    from declarative_train.planner.footprint.forked_process import ChildError, in_children

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process with a thread pool must not fork
    try:
        return in_children(works)
    except ChildError:
        return [work() for work in works]
    finally:
        torch.set_num_threads(threads)
