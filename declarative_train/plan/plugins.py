"""Checks of plugin code. They find errors that a run would show late or never (`graph/inspect_plugin.py`)."""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Component
from declarative_train.components.losses.plugin import PluginLoss
from declarative_train.components.plugin_components import PluginComponent
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.spec import BatchSpec
from declarative_train.graph.infer import NodeFact
from declarative_train.graph.inspect_plugin import MIXES
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.plugins import (
    plugin_changes_input,
    plugin_mixes_samples,
    plugin_not_run,
    plugin_tensor_unregistered,
    scalar_in_shards,
)
from declarative_train.plan.sample_groups import num_slices
from declarative_train.recipe.batch import has_axis
from declarative_train.recipe.recipe import Recipe


def check_plugins(recipe: Recipe, lowered: Lowered, batch: BatchSpec) -> list[Diagnostic]:
    """Report errors in the layers and losses of plugins. An error in all copies of a block is reported once."""
    facts = {fact.span: fact for fact in reversed(lowered.facts) if fact.kind == "plugin"}
    found = [diagnostic for fact in reversed(facts.values()) for diagnostic in _report(fact, batch)]
    for term in lowered.terms if num_slices(batch) > 1 else ():
        target = None if term.edges.target is None else lowered.specs[term.edges.target]
        if isinstance(term.component, PluginLoss) and term.component.mixing(lowered.specs[term.edges.input], target):
            span = recipe.span(("objective", "losses", term.name, "type"))
            found.append(plugin_mixes_samples(span, term.component.type, MIXES, batch))
    return found + check_shards(recipe, lowered)


def unrun_plugins(recipe: Recipe) -> list[Diagnostic]:
    """Report the components of plugins that were not checked, because the recipe was checked without running code of
    plugins."""
    training, objective = recipe.training, recipe.objective
    used: list[tuple[tuple[str, ...], Component]] = [
        (("training", "optimizer", "type"), training.optimizer),
        (("training", "lr_schedule", "type"), training.lr_schedule.component),
    ]
    used += [(("objective", "losses", name, "type"), term.component) for name, term in objective.losses.items()]
    used += [(("objective", "metrics", name, "type"), term.component) for name, term in objective.metrics.items()]
    places = [(recipe.span(path), component) for path, component in used]
    places += [(rule.span, rule.settings.optimizer) for rule in recipe.model.rules if rule.settings.optimizer]
    return [
        plugin_not_run(span, component.type)
        for span, component in places
        if isinstance(component, PluginComponent) and not component.may_import
    ]


def _report(fact: NodeFact, batch: BatchSpec) -> Iterator[Diagnostic]:
    habits, layer = fact.habits, fact.layer
    assert habits is not None
    assert layer is not None
    if habits.changed:
        ports = [port.name for port in layer.ports]
        yield plugin_changes_input(fact.span, fact.path, ports[min(habits.changed[0], len(ports) - 1)])
    if habits.unregistered:
        yield plugin_tensor_unregistered(fact.span, fact.path, habits.unregistered)
    if "evaluation" in habits.mixes or ((habits.mixes or habits.batch_norms) and num_slices(batch) > 1):
        yield plugin_mixes_samples(fact.span, fact.path, habits, batch)


def check_shards(recipe: Recipe, lowered: Lowered) -> list[Diagnostic]:
    """Report parameters that torch's `fully_shard` cannot shard, in modes that shard parameters."""
    if not has_axis(recipe.parallelism, recipe.layout, "shard"):
        return []
    scalars = [name for name, shape in lowered.parameters.items() if shape == ()]
    if not scalars:
        return []
    facts = [fact for fact in lowered.facts if scalars[0].startswith(f"{fact.path}.")]
    span = facts[0].span if facts else recipe.span("parallelism")
    return [scalar_in_shards(span, scalars)]
