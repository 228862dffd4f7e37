"""Memory and step time for a plan, and the check whether the plan fits on the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from declarative_train.components.hardware import HARDWARE
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.spec import DataSpec, may_lie_on_gpu
from declarative_train.data.split_rows import TRAINING
from declarative_train.graph.graph import Graph
from declarative_train.plan.checks.stages import does_not_fit
from declarative_train.plan.plan import Plan
from declarative_train.plan.predictions import TAKEN, ChoicePlan, MemoryPlan
from declarative_train.planner.auto.judge import ScaleOf
from declarative_train.planner.auto.target import Target, target_of
from declarative_train.planner.estimate.constants import Machine
from declarative_train.planner.estimate.data_time import data_s
from declarative_train.planner.estimate.estimate import estimate, mean_estimate
from declarative_train.planner.estimate.memory import MemoryScale, memory_of
from declarative_train.planner.estimate.model import facts_of
from declarative_train.planner.estimate.placement import placement_of
from declarative_train.planner.estimate.tracing import Tracer
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Auto


def depends_on_memory(recipe: Recipe) -> bool:
    """Return whether the compiler's result depends on the predicted memory. It does if `parallelism: auto` chooses by
    it, or if the recipe names hardware on which the plan must fit."""
    return recipe.layout.hardware is not None or isinstance(recipe.parallelism, Auto)


def with_estimates(
    plan: Plan,
    recipe: Recipe,
    choice: ChoicePlan | None,
    tracer: Tracer | None,
    scales: ScaleOf,
    by_length: Sequence[tuple[float, Graph]],
) -> tuple[Plan, list[Diagnostic]]:
    """Return the plan with its predicted memory and time, and diagnostics.

    `choice`: the choice of `auto`, which has already checked that the plan fits; None without `auto`. `scales`:
    function (recipe, model) -> `MemoryScale`, for plans that cannot be traced. `by_length`: (share of the samples,
    graph) for each length bucket, the longest last.
    """
    named = recipe.layout.hardware
    if tracer is None and named is None and choice is None and recipe.layout.calibration is None:
        return plan, []
    model = facts_of(plan)
    placement = placement_of(plan.layout, plan.batch, tuple(model.nodes))
    if tracer is not None:
        traced = tracer.memory(plan)
        rows, scale = traced.rows, None
        if not rows:
            scale = scales(recipe, model)
            rows = tuple(memory_of(model, placement, scale))
        plan = replace(plan, memory=rows, not_traced=_not_traced(traced.why_not, scale))
    if named is None and choice is None and recipe.layout.calibration is None:
        return plan, []
    target = target_of(recipe.layout)
    rows = plan.memory or tuple(memory_of(model, placement))
    needed = max(each.of_step for each in rows)
    rows = add_training_set(rows, plan.data, target)
    if plan.memory:
        plan = replace(plan, memory=rows)
    diagnostics = []
    if choice is not None:
        plan = replace(plan, choice=_with_exact_memory(choice, needed))
    elif target.hardware is not None and target.memory_bytes is not None and not target.holds(needed):
        span, mode = recipe.span("layout.hardware"), plan.layout.mode
        diagnostics.append(
            does_not_fit(span, mode, needed, target.memory_bytes, suggest_changes(plan), is_certain=False)
        )
    machine = target.machine if target.machine is not None or named is None else Machine(HARDWARE[named])
    if machine is None:
        return plan, diagnostics
    most = max(each.total for each in rows)
    # if the set is on the GPUs, a batch is a selection of its rows
    made_s = 0.0 if all(row.held for row in rows) else data_s(plan.data, plan.batch, machine.constants)
    found = mean_estimate(
        (share, estimate(facts, placement, machine, plan.flops, plan.batch.global_batch_size, most, made_s))
        for share, facts in [
            *((share, facts_of(replace(plan, graph=graph))) for share, graph in by_length[:-1]),
            (by_length[-1][0], model),
        ]
    )
    return replace(plan, estimate=found), diagnostics


def add_training_set(rows: tuple[MemoryPlan, ...], data: DataSpec, target: Target) -> tuple[MemoryPlan, ...]:
    """Return `rows`, the memory of a plan on each kind of device, with the training set added where it fits.

    Nothing is added if the memory of the GPU is unknown, or if data workers make the batches. The run decides again,
    from the memory that is free then, whether to keep the training set on the device."""
    held, room = data.set(TRAINING).held_bytes, target.memory_bytes
    if target.hardware is None or room is None or not held or data.workers:
        return rows
    fits_there = [may_lie_on_gpu(held, room - row.parameters, row.of_step - row.parameters) for row in rows]
    return tuple(replace(row, held=held if fits else 0) for row, fits in zip(rows, fits_there, strict=True))


def _not_traced(why: str, scale: MemoryScale | None) -> str:
    if not why:
        return ""
    how = "shapes" if scale is None else "shapes, on the scale of a trace of the model in another mode"
    return f"the step could not be traced ({why}); derived from {how}"


def _with_exact_memory(choice: ChoicePlan, memory_bytes: int) -> ChoicePlan:
    """Return the choice of `auto` with the memory of the chosen candidate replaced by `memory_bytes`, the memory of the
    finished plan. In `choice` it is only an estimate."""
    taken = (replace(each, memory_bytes=memory_bytes) if each.verdict == TAKEN else each for each in choice.candidates)
    return replace(choice, candidates=tuple(taken))


def suggest_changes(plan: Plan) -> list[str]:
    """Return changes of the recipe, as text, with which a plan that is too large may fit. They have not been tried.
    The list may be empty."""
    found = []
    if not plan.layout.is_sharded and plan.layout.pipeline is None:
        found.append("parallelism: auto, which looks for a mode that fits")
    if plan.training.recomputation.policy == "none":
        found.append("training.activation_checkpointing: blocks")
    if plan.batch.microbatch_size > 1:
        found.append("more training.gradient_accumulation_steps")
    return found
