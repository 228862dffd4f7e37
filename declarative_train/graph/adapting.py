"""Adapters (LoRA) of linear layers. The rules under `model.parameters` of the recipe say which layers have one; a rule
may name a published folder from which the adapters are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.adapters.adapter import Adapter
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.recipe.model.selectors import ParameterRule, settings_of
from declarative_train.recipe.model.tree import PublishedError, Scope

if TYPE_CHECKING:
    from declarative_train.core.diagnostics.diagnostic import Diagnostic

Report = Callable[["Diagnostic"], None]


class Adapting:
    def __init__(self, rules: Sequence[ParameterRule], scope: Scope | None) -> None:
        self._rules = [*rules] if any(rule.settings.adapter is not None for rule in rules) else []
        self._scope = scope

    def of(self, layer: str, maps: Mapping[str, tuple[int, int]], report: Report) -> dict[str, Adapter]:
        """Return the adapters of one layer: a dict from the path of a linear map within the layer to its adapter. A map
        without an adapter has no entry. `layer`: path of the layer. `maps`: shape (out, in) of the weight of each
        linear map, by the path of the map within the layer. `report`: is called with each error as a diagnostic."""
        found = {}
        for inner, shape in maps.items() if self._rules else ():
            path = f"{layer}.{inner}" if inner else layer
            adapter = settings_of(self._rules, f"{path}.weight").adapter
            if adapter is not None and self._is_tied(f"{path}.weight"):
                adapter = None  # as in PEFT: a weight that is used in two places cannot have an adapter in one
            if adapter is not None and adapter.made_from is not None:
                adapter = self._read_adapter(adapter, path, shape[0], report)
            if adapter is not None:
                found[inner] = adapter
        return found

    def _is_tied(self, name: str) -> bool:
        """Return whether the parameter `name` is tied to another one, or another one to it, by the key `tie` of a
        parameter rule."""
        own = settings_of(self._rules, name).tie is not None
        return own or any(rule.settings.tie == name for rule in self._rules)

    def _read_adapter(self, adapter: Adapter, path: str, rows: int, report: Report) -> Adapter | None:
        """Return the adapter of one linear map, read from the published folder that `adapter` names. Return None if the
        folder has no adapter for this map, or if the folder cannot be read; in the second case the error is reported.
        `path`: path of the map. `rows`: number of rows of the map's weight."""
        try:
            return adapter.read_for(self._scope, path, rows)
        except PublishedError as problem:
            rule = next(each for each in reversed(self._rules) if each.match(f"{path}.weight") is not None)
            report(published_model(rule.span, str(problem), problem.hint))
            return None
