"""Division of a model over the ranks of the `tensor` axis: what the recipe and the objective allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.graph.cuts import DivisionInput, HeadKind, derive_cuts
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.cuts import nothing_is_divided
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import ParameterPlan
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Axes

FEWEST_CLASSES = 41  # predictions of fewer classes are shown in TensorBoard, and take no memory


def divide_model(
    layout: LayoutPlan, recipe: Recipe, lowered: Lowered, parameters: Sequence[ParameterPlan]
) -> tuple[LayoutPlan, list[Diagnostic]]:
    """Return the layout with the cuts of its `tensor` axis, if it has one, and a warning if nothing is divided."""
    if not layout.has("tensor"):
        return layout, []
    whole = {}
    for item in parameters:
        found = [rule.match(item.name) for rule in recipe.model.rules]
        if any(each is not None and each.cut == "whole" for each in found):
            whole[item.name] = "the recipe says `cut: whole`"
    storages = {item.name: item.storage for item in parameters if item.storage is not None}
    ties = {item.name: item.tie for item in parameters if item.tie is not None}
    stages = () if layout.pipeline is None else layout.pipeline.stages
    stage_of = {path: number for number, paths in enumerate(stages) for path in paths}
    sequence = isinstance(recipe.mode, Axes) and recipe.mode.tensor is not None and recipe.mode.tensor.sequence
    given = DivisionInput(
        layout.size("tensor"), tuple(lowered.parameters), whole, ties, stage_of, recipe.plugins, sequence, storages
    )
    cuts = derive_cuts(lowered.graph, given, _heads(lowered))
    diagnostics = []
    if not any(node.kind for node in cuts.nodes.values()):
        reasons = {path: node.reason for path, node in cuts.nodes.items()}
        diagnostics.append(nothing_is_divided(recipe.span("parallelism.tensor"), reasons))
    return replace(layout, cuts=cuts), diagnostics


def _heads(lowered: Lowered) -> dict[str, HeadKind]:
    """Return how the layer before each output that only losses and metrics read may be divided over ranks: in parts if
    one loss reads the output and can sum over parts, else gathered."""
    found: dict[str, HeadKind] = {}
    losses = [term for term in lowered.terms if term.edges.input in lowered.graph.outputs]
    measured = {measure.edges.input for measure in lowered.measures}
    targets = {term.edges.target for term in lowered.terms} | {each.edges.target for each in lowered.measures}
    for term in losses:
        name = term.edges.input
        spec = lowered.specs[name]
        if name in targets or not spec.shape or spec.shape[-1] < FEWEST_CLASSES:
            continue
        target = None if term.edges.target is None else lowered.specs[term.edges.target]
        is_alone = name not in measured and sum(each.edges.input == name for each in losses) == 1
        found[name] = "vocabulary" if is_alone and term.component.takes_parts_of(spec, target) else "gathered"
    return found
