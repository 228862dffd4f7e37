"""Parts of the data section that depend on code of plugins that may not run: then the rows are unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from declarative_train.components.component import Component
from declarative_train.components.data import Dataset, Table
from declarative_train.components.datasets.plugin import PluginDataset
from declarative_train.components.plugin_components import PluginComponent
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.checks.plugins import plugin_data_not_run
from declarative_train.data.problems import Place

if TYPE_CHECKING:
    from declarative_train.recipe.sections.data import DataSection

Path = tuple[str | int, ...]


def may_run(component: object) -> bool:
    return not isinstance(component, PluginComponent) or component.may_import


def unrun(section: DataSection, span: Place) -> list[Diagnostic]:
    """Return a diagnostic for each component whose code was not run."""
    return [
        plugin_data_not_run(span((*path, "type")), what, component.type, _tells(component))
        for what, path, component in _parts(section)
        if not may_run(component)
    ]


def outlines(section: DataSection) -> dict[str | None, Table]:
    """Return the columns of the sources that declare them, the main source under None."""
    found: dict[str | None, Table] = {}
    for name, source in sources(section).items():
        outline = source.outline() if isinstance(source, PluginDataset) else None
        if outline is not None:
            found[name] = outline
    return found


def sources(section: DataSection) -> dict[str | None, Dataset]:
    """Return the main source under None, and the own sources of sets under their names."""
    own = {name: split.own_source for name, split in section.split.items()}
    return {None: section.source, **{name: source for name, source in own.items() if source is not None}}


def _tells(component: Component) -> bool:
    return not isinstance(component, PluginDataset) or component.outline() is not None


def _parts(section: DataSection) -> Iterator[tuple[str, Path, Component]]:
    for name, source in sources(section).items():
        yield "source", ("data", "source") if name is None else ("data", "split", name, "source"), source
    for name, field in section.fields.items():
        yield "field", ("data", "fields", name), field
    for place, transform in enumerate(section.transforms):
        yield "transform", ("data", "transforms", place), transform
