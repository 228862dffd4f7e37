"""What adapters do to the settings of a model's parameters, and what is wrong with them.

A model with adapters is frozen but for them, and for what says `frozen: false`. An adapter's own parameters start and
train as the adapter says, whatever a selector sets for all that is below it; one that names them (`lora_B`) sets all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.adapters.adapted import is_added
from declarative_train.components.layers.libraries import LIBRARIES
from declarative_train.plan.checks.adapters import (
    adapted_and_tied,
    adapted_and_trained,
    adapts_nothing,
    base_is_drawn,
    rank_is_full,
)
from declarative_train.plan.published import is_selected
from declarative_train.recipe.model.selectors import ParameterRule, settings_of
from declarative_train.recipe.model.tree import BlockNode, LayerNode, Scope
from declarative_train.recipe.sections.parameters import ParameterSettings

if TYPE_CHECKING:
    from declarative_train.components.component import Adapter
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span
    from declarative_train.plan.plan import ParameterPlan
    from declarative_train.recipe.recipe import Recipe

Settings = Mapping[str, ParameterSettings]
Maps = Mapping[str, tuple[int, int]]

_OF_ALL = ("lr_scale", "weight_decay", "optimizer")
_NAMED = "lora_"


def parameter_settings(rules: Sequence[ParameterRule], names: Iterable[str]) -> dict[str, ParameterSettings]:
    """What holds for each parameter."""
    known = list(names)
    if not any(map(is_added, known)):
        return {name: settings_of(rules, name) for name in known}
    for_added = [rule if _NAMED in rule.selector else rule._replace(only=_OF_ALL) for rule in rules]
    found = {name: settings_of(for_added if is_added(name) else rules, name) for name in known}
    return {
        name: each.model_copy(update={"frozen": True}) if each.frozen is None and not is_added(name) else each
        for name, each in found.items()
    }


def weight_of(path: str) -> str:
    return f"{path}.weight"


def check_adapters(
    recipe: Recipe, settings: Settings, maps: Maps, given: Mapping[str, Adapter] | None = None
) -> Iterator[Diagnostic]:
    """Entries that adapt nothing, and what cannot be adapted. `given`: the adapters that there are, by map."""
    rules = recipe.model.rules
    adapting = [rule for rule in rules if rule.settings.adapter is not None]
    if not adapting:
        return
    weights = [weight_of(path) for path in maps]
    tied = {found.tie: name for name, found in settings.items() if found.tie is not None}
    tied |= {name: found.tie for name, found in settings.items() if found.tie is not None}
    for rule in adapting:
        met = [name for name in settings if rule.match(name) is not None]
        mapped = [name for name in weights if rule.match(name) is not None]
        if met and not rule.may_miss and not mapped:
            yield adapts_nothing(rule.span, rule.selector, met, list(maps))
        elif mapped and all(name in tied for name in mapped):
            yield adapted_and_tied(rule.span, mapped[0], tied[mapped[0]])
    for path, shape in maps.items():
        name = weight_of(path)
        adapter = settings[name].adapter
        if adapter is None or name in tied or (given is not None and path not in given):
            continue
        if settings[name].frozen is False:
            yield adapted_and_trained(_span(rules, name, "frozen"), name)
        rank = getattr(adapter if given is None else given[path], "rank", 0)
        if rank >= min(shape):
            yield rank_is_full(_span(rules, name, "adapter"), path, rank, shape)


def _begun_by_libraries(scope: Scope) -> Iterator[str]:
    """The nodes that are a library's model with published weights; of what these lack, the node itself tells."""
    for node in scope.nodes:
        if isinstance(node, BlockNode):
            yield from _begun_by_libraries(node.scope)
        elif isinstance(node, LayerNode) and node.layer.type in LIBRARIES:
            data = node.layer.as_data()
            if data["pretrained"] or (data["pretrained"] is None and data["path"] is not None):
                yield node.path


def check_base(recipe: Recipe, plans: Sequence[ParameterPlan]) -> Iterator[Diagnostic]:
    """What no adapter changes should be worth keeping. What a plugin starts may come from anywhere."""
    first = next((rule for rule in recipe.model.rules if rule.settings.adapter is not None), None)
    if first is None or recipe.plugins:
        return
    filled: list[tuple[str, Sequence[str]]] = [
        (f"{weights.node}." if weights.node else "", weights.exclude) for weights in recipe.model.weights
    ]
    filled += [(f"{path}.", ()) for path in _begun_by_libraries(recipe.model.scope)]
    aliases: dict[str, list[str]] = {}
    for plan in plans:
        aliases.setdefault(plan.tie or plan.name, []).append(plan.name)
    drawn = [
        plan.name
        for plan in plans
        if plan.frozen and plan.tie is None and not any(_fills(*each, aliases[plan.name]) for each in filled)
    ]
    if drawn:
        yield base_is_drawn(first.span, drawn, of_all=not filled)


def _fills(prefix: str, exclude: Sequence[str], names: Sequence[str]) -> bool:
    """A tied parameter has several names: one that is excluded is drawn anew under all of them."""
    below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return bool(below) and not any(is_selected(exclude, name) for name in below)


def _span(rules: Sequence[ParameterRule], name: str, key: str) -> Span:
    return next(
        rule.span
        for rule in reversed(rules)
        if (found := rule.match(name)) is not None and key in found.model_fields_set
    )
