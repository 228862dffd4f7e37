"""Adapters (LoRA) of linear maps: found from `model.parameters`, and read from the PEFT folders that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from declarative_train.components.component import Adapter
from declarative_train.components.published import PublishedError
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.recipe.model.published_names import PublishedNames
from declarative_train.recipe.model.selectors import ParameterRule, settings_of

if TYPE_CHECKING:
    from declarative_train.core.diagnostics.diagnostic import Diagnostic

Report = Callable[["Diagnostic"], None]


class Adapting:
    def __init__(self, rules: Sequence[ParameterRule], names: PublishedNames | None) -> None:
        self._rules = [*rules] if any(rule.settings.adapter is not None for rule in rules) else []
        self._names = names

    def of(self, layer: str, maps: Mapping[str, tuple[int, int]], report: Report) -> dict[str, Adapter]:
        """Return the adapter of each linear map in a layer, by the map's path in the layer. `maps`: the shape (out, in)
        of each."""
        found = {}
        for inner, shape in maps.items() if self._rules else ():
            path = f"{layer}.{inner}" if inner else layer
            adapter = settings_of(self._rules, f"{path}.weight").adapter
            if adapter is not None and self._is_tied(f"{path}.weight"):
                adapter = None  # as in PEFT: a weight that is used in two places cannot have an adapter in one
            if adapter is not None and adapter.made_from is not None:
                adapter = self._read_adapter(adapter, adapter.made_from, path, shape[0], report)
            if adapter is not None:
                found[inner] = adapter
        return found

    def _is_tied(self, name: str) -> bool:
        """Return whether a parameter shares its values with another one."""
        own = settings_of(self._rules, name).tie is not None
        return own or any(rule.settings.tie == name for rule in self._rules)

    def _read_adapter(self, adapter: Adapter, folder: str, path: str, rows: int, report: Report) -> Adapter | None:
        """Return the adapter of one linear map with its rank from a PEFT folder; None if the folder has none, or an
        error was reported."""
        from declarative_train.components.adapters.peft_folder import peft_folder  # few recipes need it

        assert self._names is not None
        try:
            found = peft_folder(folder)
            dropout = getattr(adapter, "dropout", 0.0)
            return found.adapter_of(self._names.slices(found, path, rows), dropout, adapter.type)
        except PublishedError as problem:
            rule = next(each for each in reversed(self._rules) if each.match(f"{path}.weight") is not None)
            report(published_model(rule.span, str(problem), problem.hint))
            return None
