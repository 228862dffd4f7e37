"""Storage of frozen weights in fewer bits (`storage` in `model.parameters`): the number format of each weight, and
errors for weights that cannot be stored in it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from declarative_train.plan.checks.storages import stored_and_tied, stored_and_trained, stores_nothing
from declarative_train.recipe.model.selectors import ParameterRule
from declarative_train.recipe.sections.parameters import ParameterSettings

if TYPE_CHECKING:
    from declarative_train.components.storages import StorageName
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.core.span import Span
    from declarative_train.plan.plan import ParameterPlan
    from declarative_train.recipe.recipe import Recipe

Settings = Mapping[str, ParameterSettings]


def storage_of(name: str, found: ParameterSettings, tables: Collection[str]) -> StorageName | None:
    """Return the number format in which a parameter is stored; None for full precision. `found`: settings of the
    parameter. `tables`: names of the weights that can be stored in fewer bits (those of linear maps and embeddings)."""
    return found.storage if name in tables else None


def check_storages(
    recipe: Recipe, settings: Settings, plans: Sequence[ParameterPlan], tables: Collection[str]
) -> Iterator[Diagnostic]:
    """Report `storage` settings that have no effect or cannot be applied. `tables`: names of the weights that can be
    stored in fewer bits (those of linear maps and embeddings)."""
    rules = [rule for rule in recipe.model.rules if rule.settings.storage is not None]
    for rule in rules:
        met = [name for name in settings if rule.match(name) is not None]
        if met and not rule.may_miss and not any(name in tables for name in met):
            yield stores_nothing(rule.span, rule.selector, met, list(tables))
    if not rules:
        return
    ends: dict[str, list[str]] = {}
    for plan in plans:
        ends.setdefault(plan.tie or plan.name, []).append(plan.name)
    for plan in plans:
        asked = storage_of(plan.name, settings[plan.name], tables)
        if asked is None:
            continue
        trained = next(each for each in plans if each.name == (plan.tie or plan.name))
        if not trained.frozen:
            yield stored_and_trained(_span(rules, plan.name), plan.name, asked)
            return
        other = [name for name in ends[plan.tie or plan.name] if storage_of(name, settings[name], tables) != asked]
        if other:
            yield stored_and_tied(_span(rules, plan.name), plan.name, asked, other[0])
            return


def _span(rules: Sequence[ParameterRule], name: str) -> Span:
    return next(
        rule.span
        for rule in reversed(rules)
        if (found := rule.match(name)) is not None and "storage" in found.model_fields_set
    )
