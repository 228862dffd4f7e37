"""Division of layers over the ranks of the axes `tensor` and `expert`, where the recipe and the objective allow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.graph.cuts import Cuts, DivisionInput, HeadKind, derive_cuts
from declarative_train.graph.expert_cuts import find_expert_cuts
from declarative_train.graph.graph import Graph
from declarative_train.graph.lower import Lowered
from declarative_train.graph.read import is_library
from declarative_train.plan.checks.cuts import experts_do_not_divide, no_experts, nothing_is_divided
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import ParameterPlan
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Axes

FEWEST_CLASSES = 41  # scores of fewer classes are not divided: they take little memory, and TensorBoard shows them


def divide_model(
    layout: LayoutPlan, recipe: Recipe, lowered: Lowered, parameters: Sequence[ParameterPlan]
) -> tuple[LayoutPlan, list[Diagnostic]]:
    """Divide the parameters over the axes `tensor` and `expert`. Return the layout with the parts that each rank has
    (`cuts`), and diagnostics. A layout without these axes is returned unchanged."""
    layout, diagnostics = _divide_layers(layout, recipe, lowered, parameters)
    if not layout.has("expert"):
        return layout, diagnostics
    layout, found = _divide_experts(layout, recipe, lowered)
    return layout, [*diagnostics, *found]


def _divide_experts(layout: LayoutPlan, recipe: Recipe, lowered: Lowered) -> tuple[LayoutPlan, list[Diagnostic]]:
    cuts = layout.cuts or Cuts()
    span, diagnostics = recipe.span("parallelism.expert"), []
    found = dict(find_expert_cuts(lowered.graph, layout.size("expert"), recipe.plugins))
    for path, cut in found.items():
        if isinstance(cut, str):
            diagnostics.append(experts_do_not_divide(span, path, cut))
        else:
            cuts = cuts.with_experts(path, cut)
    if not found:
        diagnostics.append(no_experts(span, list(_library_nodes(lowered.graph))))
    return replace(layout, cuts=cuts), diagnostics


def _divide_layers(
    layout: LayoutPlan, recipe: Recipe, lowered: Lowered, parameters: Sequence[ParameterPlan]
) -> tuple[LayoutPlan, list[Diagnostic]]:
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
    size, parts, names = layout.size("tensor"), layout.size("context"), tuple(lowered.parameters)
    given = DivisionInput(size, names, whole, ties, stage_of, recipe.plugins, sequence, storages, parts)
    cuts = derive_cuts(lowered.graph, given, _heads(lowered))
    diagnostics = []
    if not any(node.kind for node in cuts.nodes.values()):
        reasons = {path: node.reason for path, node in cuts.nodes.items()}
        diagnostics.append(nothing_is_divided(recipe.span("parallelism.tensor"), reasons))
    elif whole := {
        path: cuts.nodes[path].reason
        for path in _library_nodes(lowered.graph)
        if path in cuts.nodes and not cuts.nodes[path].kind
    }:
        diagnostics.append(nothing_is_divided(recipe.span("parallelism.tensor"), whole, "nothing of a library's model"))
    return replace(layout, cuts=cuts), diagnostics


def _library_nodes(graph: Graph, prefix: str = "") -> Iterator[str]:
    """Yield the paths of the nodes that are models of libraries (transformers, timm), also of those inside blocks.
    `prefix`: path of the block that contains `graph`, with a dot at the end; "" for the model itself."""
    for node in graph.nodes:
        if node.graph is not None:
            yield from _library_nodes(node.graph, f"{prefix}{node.name}.")
        elif is_library(node.component):
            yield f"{prefix}{node.name}"


def _heads(lowered: Lowered) -> dict[str, HeadKind]:
    """Return how the ranks of the `tensor` axis compute the scores of many classes: {output that a loss reads: how}.

    vocabulary   each rank computes the scores of some classes, and its share of the loss. The loss must allow this, and
                 no other loss or metric may read the output
    gathered     every rank gathers the scores of all classes
    """
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
        found[name] = "vocabulary" if is_alone and term.component.can_divide_classes(spec, target) else "gathered"
    return found
