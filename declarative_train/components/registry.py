"""Tables of component types. The module of a type is imported when the type is first used.

The tables are plain literals (`{"linear": "linear.Linear", ...}`). If all modules were imported at once, every `dtrain
lint` would load a hundred pydantic models that the recipe does not name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Generic, TypeVar

from pydantic import ValidationError

from declarative_train.components.component import Component
from declarative_train.core.packs import add_rows, load

C = TypeVar("C", bound=Component)


class ComponentError(ValueError):
    """Error: a plan has a component that this version of dtrain lacks, or whose keys are different."""


class Registry(Mapping[str, type[C]], Generic[C]):
    """Table {type: component class} for one kind of component. The module of a class is imported when its type is
    looked up.

    `kind`: the name of the kind ("layer"). `table`: {type: path of the class below `package`} for the built-in types.
    The types in packs (installed packages of components) are added to it.
    """

    def __init__(self, kind: str, package: str, table: dict[str, str]) -> None:
        self.kind = kind
        self._package = package
        self._own = table
        self._found: dict[str, type[C]] = {}

    @cached_property
    def _table(self) -> dict[str, str]:
        return add_rows(self.kind, self._own)

    def __getitem__(self, name: str) -> type[C]:
        if name in self._found:
            return self._found[name]
        if name in self._own:
            module, _, attribute = self._own[name].rpartition(".")
            self._found[name] = getattr(import_module(f"{self._package}.{module}"), attribute)
        else:
            self._found[name] = load(self._table[name])
        return self._found[name]

    def read(self, data: Mapping[str, object]) -> C:
        """Return the component that the JSON data of a plan (`Component.as_data`) describe. Raises ComponentError if
        this version of dtrain has no such component, or if its keys are different."""
        name = str(data.get("type"))
        if name not in self and isinstance(path := data.get("plugin"), str):
            from declarative_train.components.plugin_components import (
                find_plugin_component,
            )  # imported late: few plans need it

            try:
                kind = find_plugin_component(self.kind, path, name)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ComponentError(f"the {self.kind} `{name}` is of the plugin {path}: {reason}") from error
            if kind is None:
                raise ComponentError(f"the plan names the {self.kind} `{name}`, which {path} does not have")
            return kind.from_data(data)  # type: ignore[return-value]
        if name not in self:
            raise ComponentError(f"the plan names `{name}`, which this version of dtrain does not have")
        try:
            return self[name].from_data(data)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise ComponentError(f"the plan's `{name}` does not fit this version of dtrain: {reason}") from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, name: object) -> bool:
        return name in self._table
