"""Judgement of one candidate of `auto`: the error that excludes it, or its memory and step time. No plan is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.mesh import size_of
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.graph.lower import Lowered
from declarative_train.graph.partition import stage_graphs
from declarative_train.plan.assign_ranks import assign_ranks
from declarative_train.plan.layout import WireBytes
from declarative_train.plan.plan import ParameterPlan
from declarative_train.plan.plugins import check_shards
from declarative_train.plan.precision import reduce_word
from declarative_train.plan.recomputation import Recomputation
from declarative_train.plan.sample_groups import check_mixing
from declarative_train.plan.sharding import sharding_of
from declarative_train.plan.stages import PlacementInput, Stages, stages_of, wire_bytes
from declarative_train.plan.timing import batch_of
from declarative_train.planner.auto.candidates import Candidate
from declarative_train.planner.auto.target import Target
from declarative_train.planner.estimate.memory import MemoryScale, largest_bytes, least_bytes
from declarative_train.planner.estimate.model import ModelFacts, facts_of_rank, model_facts
from declarative_train.planner.estimate.placement import (
    DeviceGroup,
    DevicePart,
    PipelinePlacement,
    Placement,
    candidate_parts,
    groups,
)
from declarative_train.planner.estimate.step_time import step_time
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.load import draft_rules
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import DataAxes, Parallelism, PipelineAxis
from declarative_train.recipe.sections.top import SECTIONS

ScaleOf = Callable[[Recipe, ModelFacts], MemoryScale | None]
Cut = tuple[Stages | None, list[Diagnostic], tuple[WireBytes, ...]]


@dataclass(frozen=True, slots=True)
class LayoutVerdict:
    """Verdict on a candidate, from estimates.

    refusal        the error that `dtrain lint` would report for this mode; if set, the other fields keep their defaults
    memory_bytes   memory of a step
    least_bytes    memory of parameters, gradients and optimizer state alone, which is known without a trace
    step_s         seconds of a step; None if unknown
    is_least       whether `step_s` is only a lower bound
    """

    candidate: Candidate
    refusal: Diagnostic | None = None
    memory_bytes: int = 0
    step_s: float | None = None
    fits: bool = False
    least_bytes: int = 0
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Judge:
    """Estimator of the memory and the step time of each candidate mode of one recipe.

    settings   keyword arguments with which it calls `model_facts`
    cuts       cache: (number of stages, whether the schedule splits the backward) -> pipeline stages
    divided    cache: (sizes of the axes `tensor`, `context`, `expert`) -> facts about the model on one rank, or None if
               these axes divide nothing
    """

    recipe: Recipe
    lowered: Lowered
    parameters: tuple[ParameterPlan, ...]
    data: DataSpec
    target: Target
    model: ModelFacts
    scales: ScaleOf
    settings: Mapping[str, Any]
    cuts: dict[tuple[int, bool], Cut] = field(default_factory=dict)
    divided: dict[tuple[int, ...], ModelFacts | None] = field(default_factory=dict)

    @staticmethod
    def of(
        recipe: Recipe,
        lowered: Lowered,
        parameters: tuple[ParameterPlan, ...],
        data: DataSpec,
        target: Target,
        scales: ScaleOf,
    ) -> Judge:
        training = recipe.training
        settings: dict[str, Any] = {
            "precision": training.precision.compute,
            "reduce": reduce_word(training.precision),
            "matmul": training.precision.matmul,
            "recomputation": Recomputation.of(training.activation_checkpointing),
            "optimizer": training.optimizer.as_data(),
            "heads": lowered.heads,
            "averages": training.ema is not None,
            "channels_last": training.channels_last,
            "plugins": tuple(recipe.plugins),
            "compiled": training.compile,
        }
        model = model_facts(lowered.graph, parameters, lowered.units, **settings)
        return Judge(recipe, lowered, parameters, data, target, model, scales, settings)

    def verdict(self, candidate: Candidate) -> LayoutVerdict:
        recipe = self.recipe._replace(parallelism=candidate.parallelism)
        refusal = _first_error(findings(recipe))
        if refusal is not None:
            return LayoutVerdict(candidate, refusal)
        batch, found = batch_of(recipe, self.data)
        if batch is None:
            return LayoutVerdict(candidate, _first_error(found))
        mixing = check_mixing(recipe, self.lowered, batch, self.data)
        refusal = _first_error([*mixing, *check_shards(recipe, self.lowered)])
        if refusal is not None:
            return LayoutVerdict(candidate, refusal)
        placement, refusal = self._placement(recipe, candidate.parallelism, batch)
        if placement is None:
            return LayoutVerdict(candidate, refusal)
        needed = largest_bytes(self.model, placement, self.scales(self.recipe, self.model))
        machine = self.target.machine
        time = None if machine is None else step_time(self.model, placement, machine)
        step_s = None if time is None else time.total_s
        least = least_bytes(self.model, placement)
        return LayoutVerdict(candidate, None, needed, step_s, self.target.holds(needed), least)

    def verdict_of_divided(self, candidate: Candidate, *, is_exact: bool = False) -> LayoutVerdict | None:
        """Return the verdict on a candidate whose ranks divide layers, experts or positions. Return None if the recipe
        has an error in this mode, or if the model has nothing to divide in this way.

        `is_exact`: trace the kernels of the divided layers. By default, their times are computed from the kernels of
        the undivided layers. With the axis `tensor`, the step time is then only a lower bound.
        """
        recipe = self.recipe._replace(parallelism=candidate.parallelism)
        if any(each.is_error for each in findings(recipe)):
            return None
        batch, _ = batch_of(recipe, self.data)
        if batch is None or _first_error(check_mixing(recipe, self.lowered, batch, self.data)) is not None:
            return None
        model = self._model_of_rank(recipe, batch)
        placement, _ = self._placement(recipe, candidate.parallelism, batch)
        if model is None or placement is None:
            return None
        needed = largest_bytes(model, placement, self.scales(self.recipe, self.model))
        is_least = model.num_tensor_ranks > 1 and not is_exact
        model = model if is_exact else model.with_kernels_of(self.model)
        machine = self.target.machine
        time = None if machine is None else step_time(model, placement, machine)
        step_s = None if time is None else time.total_s
        fits, least = self.target.holds(needed), least_bytes(model, placement)
        return LayoutVerdict(candidate, None, needed, step_s, fits, least, is_least)

    def _model_of_rank(self, recipe: Recipe, batch: BatchSpec) -> ModelFacts | None:
        """Return facts about the part of the model that one rank of the axes `tensor`, `context` and `expert` computes.
        Return None if nothing in the model can be divided over these axes, or if lint rejects the division."""
        mesh = recipe.mode.mesh(recipe.layout.num_gpus)
        assert mesh is not None, "P001 comes first"
        key = tuple(size_of(mesh, name) for name in ("tensor", "context", "expert"))
        if key not in self.divided:
            mode = recipe.mode
            if mode.pipeline is not None:  # stages matter only if two of them share a divided tensor
                rest: dict[str, Any] = {"pipeline": None, "data": DataAxes(replicate="all")}
                recipe = recipe._replace(parallelism=mode.model_copy(update=rest))
            layout, found = assign_ranks(recipe, self.lowered, self.parameters, batch)
            is_divided = layout is not None and (layout.context or (layout.cuts and layout.cuts.nodes))
            self.divided[key] = None
            if layout is not None and is_divided and _first_error(found) is None:
                self.divided[key] = facts_of_rank(layout, self.lowered.graph, self.parameters, **self.settings)
        return self.divided[key]

    def _placement(
        self, recipe: Recipe, parallelism: Parallelism, batch: BatchSpec
    ) -> tuple[Placement | None, Diagnostic | None]:
        layout, number = recipe.layout, batch.accumulation * batch.num_microbatches
        mesh = parallelism.mesh(layout.num_gpus)
        assert mesh is not None, "P001 comes first"
        shards, replicas = groups(mesh)
        placement = Placement(
            scatters=parallelism.scatters,
            devices_per_node=layout.num_gpus_per_node,
            num_devices=layout.num_gpus,
            shards=shards,
            replicas=replicas,
            rows=batch.microbatch_size / size_of(mesh, "context"),
            num_microbatches=number,
            parts=(DevicePart("each device", (tuple(self.model.nodes),), (1,)),),
            sharding=sharding_of(
                self.model.opened,
                self.lowered.units,
                self.parameters,
                reshard=parallelism.reshard,
                in_pipeline=size_of(mesh, "pipeline") > 1,
            ),
            positions=DeviceGroup(size_of(mesh, "context"), size_of(mesh, "tensor")),
        )
        pipeline = parallelism.pipeline
        if pipeline is None:
            return placement, None
        schedule = PIPELINE_SCHEDULES[pipeline.schedule]
        key = (pipeline.stages, schedule.splits_backward)
        if key not in self.cuts:
            self.cuts[key] = self._stage_graphs(PlacementInput(recipe, self.lowered, self.parameters, number), pipeline)
        stages, found, wires = self.cuts[key]
        if stages is None:
            return None, _first_error(found)
        num_ranks = size_of(mesh, "pipeline")
        held = [schedule.stages_of(rank, num_ranks, pipeline.stages) for rank in range(num_ranks)]
        return replace(
            placement,
            parts=candidate_parts(stages, held, pipeline.schedule, number),
            pipes=PipelinePlacement(
                pipeline.schedule,
                num_ranks,
                pipeline.stages,
                wires,
                stride=batch.data_parallel_size * size_of(mesh, "context", "tensor"),
            ),
        ), None

    def _stage_graphs(self, site: PlacementInput, pipeline: PipelineAxis) -> Cut:
        stages, found = stages_of(site, pipeline, self.model.opened)
        wires = () if stages is None else wire_bytes(stage_graphs(self.model.opened, stages), self.model.precision)
        return stages, found, wires


def findings(recipe: Recipe) -> list[Diagnostic]:
    """Return the diagnostics of all rules that need only the recipe, neither the data nor the graph."""
    sections: Mapping[str, object] = {name: recipe.section(name) for name in SECTIONS if name != "model"}
    draft = Draft(recipe.tree, sections, recipe.model.scope, tuple(recipe.data.split), recipe.model.rules)
    return [diagnostic for rule in draft_rules() for diagnostic in rule(draft)]


def _first_error(diagnostics: list[Diagnostic]) -> Diagnostic | None:
    return next((diagnostic for diagnostic in diagnostics if diagnostic.is_error), None)
