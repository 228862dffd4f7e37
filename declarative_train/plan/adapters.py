"""Settings of the parameters of a model with adapters (LoRA), and checks of the adapters.

An adapter adds the product of two small matrices (`lora_A`, `lora_B`) to the weight of a linear map. Only these are
trained, and the parameters that the recipe sets to `frozen: false`. The key `adapter` sets how the matrices start and
train. So do rules under `parameters` whose selector names a matrix, such as `*.lora_B`; other rules do not change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.adapters.adapted import is_added
from declarative_train.plan.checks.adapters import (
    adapted_and_tied,
    adapted_and_trained,
    adapts_nothing,
    base_is_drawn,
    rank_is_full,
)
from declarative_train.plan.checks.parameters import frozen_is_drawn
from declarative_train.plan.tensor_maps import is_selected
from declarative_train.recipe.model.selectors import ParameterRule, settings_of
from declarative_train.recipe.model.walk import all_layers
from declarative_train.recipe.sections.parameters import ParameterSettings

if TYPE_CHECKING:
    from declarative_train.components.adapters.adapter import Adapter
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span
    from declarative_train.plan.plan import ParameterPlan
    from declarative_train.recipe.recipe import Recipe

Settings = Mapping[str, ParameterSettings]
Maps = Mapping[str, tuple[int, int]]

_OF_ALL = ("lr_scale", "weight_decay", "optimizer")
_NAMED = "lora_"


def parameter_settings(rules: Sequence[ParameterRule], names: Iterable[str]) -> dict[str, ParameterSettings]:
    """Return a dict from each parameter in `names` to its settings, by the rules of the recipe. `names`: all parameters
    of the model.

    If the model has adapters, all parameters outside of adapters are frozen, except those that the recipe sets to
    `frozen: false`.
    """
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
    """Yield a diagnostic for each entry `adapter` of the recipe that matches no weight, or only tied weights. Also
    yield one for each adapted weight that is trained itself, or is too small for the rank of its adapter.

    `settings`: {parameter: its settings}. `maps`: {path of a linear map: shape of its weight}. `given`: {path of a
    linear map: its adapter in the model}; None: check the adapters as the recipe describes them.
    """
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


def check_base(
    recipe: Recipe,
    plans: Sequence[ParameterPlan],
    settings: Mapping[str, ParameterSettings],
    is_random: Callable[[str], bool],
) -> Iterator[Diagnostic]:
    """Warn about frozen parameters that no file fills, because they keep their initial values for the whole run. In a
    model without adapters, warn only if the initial values are random and other parameters are trained.

    `is_random`: function from a parameter's name to whether its layer draws the initial values. A recipe with plugins
    is not checked, because a plugin may set any value.
    """
    if recipe.plugins:
        return
    first = next((rule for rule in recipe.model.rules if rule.settings.adapter is not None), None)
    filled: list[tuple[str, Sequence[str]]] = [
        (f"{weights.node}." if weights.node else "", weights.exclude) for weights in recipe.model.weights
    ]
    filled += [(f"{node.path}.", ()) for node in all_layers(recipe.model.scope) if node.layer.is_pretrained]
    aliases: dict[str, list[str]] = {}
    for plan in plans:
        aliases.setdefault(plan.tie or plan.name, []).append(plan.name)
    drawn = [
        plan.name
        for plan in plans
        if plan.frozen and plan.tie is None and not any(_fills(*each, aliases[plan.name]) for each in filled)
    ]
    if drawn and first is None and not all(plan.frozen for plan in plans):
        meant = {name for name, found in settings.items() if found.init is not None}
        random = [name for name in drawn if name not in meant and is_random(name)]
        if random:
            yield frozen_is_drawn(_span(recipe.model.rules, random[0], "frozen"), random)
    if drawn and first is not None:
        yield base_is_drawn(first.span, drawn, of_all=not filled)


def _fills(prefix: str, exclude: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether an entry of `model.weights` sets the value of a parameter from its file.

    `prefix`: the entry sets only parameters whose names begin with it. `exclude`: selectors of parameters that it does
    not set. `names`: all names of the parameter; a tied parameter has several, and is excluded if a selector matches
    one of them.
    """
    below = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return bool(below) and not any(is_selected(exclude, name) for name in below)


def _span(rules: Sequence[ParameterRule], name: str, key: str) -> Span:
    return next(
        rule.span
        for rule in reversed(rules)
        if (found := rule.match(name)) is not None and key in found.model_fields_set
    )
