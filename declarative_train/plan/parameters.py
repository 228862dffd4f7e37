"""Parameters of a plan. Their names and shapes come from the graph, their settings from `model.parameters`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from declarative_train.components.adapters.adapted import is_added
from declarative_train.components.component import Component, Optimizer
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.graph.graph import Graph
from declarative_train.graph.initialise import find_layer_init
from declarative_train.graph.lower import Lowered
from declarative_train.graph.merge import adapters_of
from declarative_train.plan.adapters import check_adapters, check_base, parameter_settings
from declarative_train.plan.checks.parameters import (
    init_does_not_fit,
    muon_on_embedding,
    muon_on_experts,
    nothing_trains,
    optimizer_does_not_fit,
    tie_does_not_fit,
    tied_embedding_start,
    unaligned_classes,
    zeros_everywhere,
)
from declarative_train.plan.plan import ParameterPlan
from declarative_train.plan.storages import check_storages, storage_of
from declarative_train.recipe.batch import num_shards
from declarative_train.recipe.model.selectors import ParameterRule, check_rules
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parameters import ParameterSettings

Shapes = Mapping[str, tuple[int, ...]]

EMBEDDINGS = frozenset({"embedding", "embedding_bag", "embeddings"})
MANY_OUTPUTS = 4096  # with at least so many outputs, the time of a layer's products is noticed
# standard deviation of the scores of a tied output layer at the start; usual initial values give 0 to 1
LARGE_LOGITS = 2.0


def plan_parameters(recipe: Recipe, lowered: Lowered) -> tuple[tuple[ParameterPlan, ...] | None, list[Diagnostic]]:
    """Return a ParameterPlan for each parameter, in the order of the graph, and diagnostics. The plans are None after
    an error."""
    graph, shapes, maps, tables = lowered.graph, lowered.parameters, lowered.maps, lowered.tables
    rules = recipe.model.rules
    diagnostics = list(check_rules(rules, shapes))
    settings = parameter_settings(rules, shapes)
    diagnostics += check_adapters(recipe, settings, maps, adapters_of(graph))
    for name, found in settings.items():
        shape_error = None if found.init is None else found.init.check(shapes[name])
        if shape_error is not None:
            diagnostics.append(init_does_not_fit(_span(rules, name, "init"), name, shape_error))
    sources, problems = _sources(rules, settings, shapes)
    diagnostics += problems
    if any(item.is_error for item in diagnostics):
        return None, diagnostics
    plans = [_plan(name, shape, settings[name], tables) for name, shape in shapes.items()]
    plans = _apply_ties(plans, sources, graph, recipe.plugins)
    diagnostics += check_base(recipe, plans, settings, partial(_starts_at_random, graph, recipe.plugins))
    diagnostics += check_storages(recipe, settings, plans, sorted(tables))
    types = dict(_types(graph))
    diagnostics += _check_tied_starts(recipe, sources, settings, shapes, graph, types)
    diagnostics += _check_optimizers(recipe, plans, settings, types)
    diagnostics += _check_alignment(recipe, plans, types)
    matrices = [plan for plan in plans if len(plan.shape) > 1 and plan.tie is None]
    at_zero = [plan for plan in matrices if plan.init is not None and _is_zero(plan.init)]
    asked = [plan.name for plan in at_zero if settings[plan.name].init is not None]
    if asked and len(at_zero) == len(matrices) > 1 and not recipe.model.weights:
        diagnostics.append(zeros_everywhere(_span(rules, asked[0], "init"), len(matrices)))
    return (None if any(item.is_error for item in diagnostics) else tuple(plans)), diagnostics


def rule_span(recipe: Recipe, name: str, key: str) -> Span:
    """Return the place of the rule in the recipe that sets `key` for the parameter `name`."""
    return _span(recipe.model.rules, name, key)


def _span(rules: Sequence[ParameterRule], name: str, key: str) -> Span:
    for rule in reversed(rules):
        found = rule.match(name)
        if found is not None and key in found.model_fields_set:
            return rule.span
    raise LookupError(f"no rule sets {key} for {name}")


def _plan(name: str, shape: tuple[int, ...], found: ParameterSettings, tables: Collection[str]) -> ParameterPlan:
    return ParameterPlan(
        name=name,
        shape=shape,
        num_elements=prod(shape),
        frozen=bool(found.frozen),
        lr_scale=1.0 if found.lr_scale is None else found.lr_scale,
        weight_decay=found.weight_decay,
        init=_data(found.init),
        optimizer=_data(found.optimizer),
        storage=storage_of(name, found, tables),
    )


def _starts_at_random(graph: Graph, plugins: Sequence[str], name: str) -> bool:
    return find_layer_init(graph, name, plugins).type not in ("constant", "ones", "zeros")


def _is_zero(init: Mapping[str, object]) -> bool:
    return init["type"] == "zeros" or (init["type"] == "constant" and init["value"] == 0)


def _data(component: Component | None) -> dict[str, object] | None:
    return None if component is None else component.as_data()


def _sources(
    rules: Sequence[ParameterRule], settings: Mapping[str, ParameterSettings], shapes: Shapes
) -> tuple[dict[str, str], list[Diagnostic]]:
    """Return a dict from each tied parameter to its source, and an error for each tie that does not fit. The source is
    the parameter whose values it shares. If `a` is tied to `b` and `b` to `c`, the source of both is `c`. `rules`: the
    rules of the recipe; an error names the place of its rule."""
    ties = {name: found.tie for name, found in settings.items() if found.tie is not None}
    sources: dict[str, str] = {}
    diagnostics: list[Diagnostic] = []
    for name, tie in ties.items():
        way = [name]
        while tie in ties and tie not in way:
            way.append(tie)
            tie = ties[tie]
        if tie in way or tie not in shapes or shapes[tie] != shapes[name]:
            at = _span(rules, name, "tie")
            diagnostics.append(tie_does_not_fit(at, name, shapes[name], tie, shapes, in_circle=tie in way))
        else:
            sources[name] = tie
    return sources, diagnostics


def _apply_ties(
    plans: Iterable[ParameterPlan], sources: Mapping[str, str], graph: Graph, plugins: Sequence[str]
) -> list[ParameterPlan]:
    """Return the plans of all parameters after tying. Tied parameters share one tensor. Its owner is the one of them
    that comes first in the graph; it gets the settings of the source. The plans of the others name the owner in `tie`.

    `sources`: {tied parameter: its source, the parameter that the recipe names in `tie`}.
    """
    order = {plan.name: plan for plan in plans}
    position = {name: at for at, name in enumerate(order)}
    for source in set(sources.values()):
        members = [source, *(name for name, end in sources.items() if end == source)]
        first = min(members, key=position.__getitem__)
        settings = order[source]
        if first != source and settings.init is None:
            settings = replace(settings, init=_data(find_layer_init(graph, source, plugins)))
        order[first] = replace(settings, name=first)
        for name in members:
            if name != first:
                order[name] = ParameterPlan(name, settings.shape, settings.num_elements, settings.frozen, tie=first)
    return list(order.values())


def _types(graph: Graph, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (path, component type) of every layer in a graph. `prefix`: path of the block that contains the graph, with
    a dot at the end."""
    for node in graph.nodes:
        if node.graph is not None:
            yield from _types(node.graph, f"{prefix}{node.name}.")
        elif node.component is not None:
            yield f"{prefix}{node.name}", str(node.component["type"])


def _type_of(name: str, types: Mapping[str, str]) -> str:
    """Return the component type of the layer that contains the parameter `name`; "" if it is not known. `types`: dict
    from the path of a layer to its type."""
    return types.get(name.rpartition(".")[0], "")


def _check_tied_starts(
    recipe: Recipe,
    sources: Mapping[str, str],
    settings: Mapping[str, ParameterSettings],
    shapes: Shapes,
    graph: Graph,
    types: Mapping[str, str],
) -> Iterator[Diagnostic]:
    """Warn about an output layer that is tied to an embedding, if the embedding's initial values are too large for an
    output layer.

    Parameters that `model.weights` fills are not checked. `sources`: dict from each tied parameter to the one that it
    is tied to. `types`: dict from the path of a layer to its type.
    """
    filled = [weights.node for weights in recipe.model.weights]
    for name, source in sources.items():
        table, head = (source, name) if _type_of(source, types) in EMBEDDINGS else (name, source)
        if _type_of(table, types) not in EMBEDDINGS or _type_of(head, types) != "linear":
            continue
        rule = settings[source].init or find_layer_init(graph, source, recipe.plugins)
        std, width = getattr(rule, "std", 0.0), shapes[table][-1]
        if std * width**0.5 > LARGE_LOGITS and not any(
            f"{source}.".startswith(f"{each}." * bool(each)) for each in filled
        ):
            yield tied_embedding_start(_span(recipe.model.rules, name, "tie"), table, head, std, width)


def _check_alignment(recipe: Recipe, plans: Sequence[ParameterPlan], types: Mapping[str, str]) -> Iterator[Diagnostic]:
    """Warn about the first large linear layer whose number of outputs makes half-precision products slow on a GPU.
    Layers that `model.weights` fills are not checked, because their sizes are fixed."""
    layout, precision = recipe.layout, recipe.training.precision.compute
    if precision not in ("bf16", "fp16") or (layout.device != "cuda" and layout.hardware in (None, "cpu")):
        return
    filled = tuple(f"{weights.node}." if weights.node else "" for weights in recipe.model.weights)
    for plan in plans:
        if len(plan.shape) != 2 or _type_of(plan.name, types) != "linear" or plan.name.startswith(filled):
            continue
        if plan.shape[0] >= MANY_OUTPUTS and plan.shape[0] % 8:
            path = plan.name.rpartition(".")[0]
            yield unaligned_classes(recipe.span(f"model.graph.{path}"), path, plan.shape[0], precision)
            return


def _check_optimizers(
    recipe: Recipe, plans: Sequence[ParameterPlan], settings: Mapping[str, ParameterSettings], types: Mapping[str, str]
) -> list[Diagnostic]:
    """Return errors for optimizers that cannot update their parameters, and warnings for parameters that muon should
    not update. If every parameter is frozen, return one error that says so."""
    updated = {plan.name: plan.shape for plan in plans if not plan.frozen and plan.tie is None}
    if not updated:
        frozen_by = [plan.name for plan in plans if plan.frozen]
        last = next((name for name in frozen_by if is_added(name)), frozen_by[0])
        return [nothing_trains(rule_span(recipe, last, "frozen"))]
    diagnostics = []
    own = {name: shape for name, shape in updated.items() if settings[name].optimizer is None}
    groups: list[tuple[Optimizer, Span, Shapes]] = []
    if own:
        groups.append((recipe.training.optimizer, recipe.span("training.optimizer.type"), own))
    others: dict[Span, tuple[Optimizer, dict[str, tuple[int, ...]]]] = {}
    for name, shape in updated.items():
        optimizer = settings[name].optimizer
        if optimizer is not None:
            span = rule_span(recipe, name, "optimizer")
            others.setdefault(span, (optimizer, {}))[1][name] = shape
    groups += [(optimizer, span, shapes) for span, (optimizer, shapes) in others.items()]
    for optimizer, span, shapes in groups:
        shape_error = optimizer.check(shapes, num_shards(recipe.parallelism, recipe.layout))
        if shape_error is not None:
            diagnostics.append(optimizer_does_not_fit(span, shape_error))
        tables = [name for name in shapes if _type_of(name, types) in EMBEDDINGS]
        if optimizer.type == "muon" and tables:
            diagnostics.append(muon_on_embedding(span, tables))
        stacked = [name for name in shapes if types.get(name.rpartition(".experts.")[0]) == "moe"]
        if optimizer.type == "muon" and stacked:
            diagnostics.append(muon_on_experts(span, stacked))
    return diagnostics
