"""Draft of a recipe: only the sections without errors, so that checks can continue after the first error."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from typing import NamedTuple, TypeVar

from declarative_train.recipe.flat_values import Leaf, leaves
from declarative_train.recipe.model.selectors import ParameterRule
from declarative_train.recipe.model.tree import Scope
from declarative_train.recipe.recipe import Spans
from declarative_train.recipe.sections.checkpoint import Checkpoint
from declarative_train.recipe.sections.data import DataSection
from declarative_train.recipe.sections.evaluation import Evaluation
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.logging import Logging
from declarative_train.recipe.sections.objective import ObjectiveSection
from declarative_train.recipe.sections.parallelism import Axes, Parallelism, PipelineAxis
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.sweep import Sweep
from declarative_train.recipe.sections.training import Training
from declarative_train.source.node import Mapping, find

T = TypeVar("T", bound=Section)


class Draft(NamedTuple):
    """Sections of a recipe that could be read, and what is known about the others.

    tree       the merged YAML, with templates rendered
    sections   {name: section} without those that have errors or that a fragment omits
    scope      graph of the model, with blocks expanded; None if it has errors
    split      names of the data sets; None if unknown
    rules      entries of `model.parameters` that could be read
    head       values of the top-level keys that are not sections
    """

    tree: Mapping
    sections: MappingABC[str, object] = {}
    scope: Scope | None = None
    split: tuple[str, ...] | None = None
    rules: tuple[ParameterRule, ...] = ()
    head: MappingABC[str, object] = {}

    @property
    def span(self) -> Spans:
        return Spans(self.tree)

    def leaves(self) -> Iterator[Leaf]:
        """Yield a Leaf for each scalar and each list of the recipe, defaults included. A section with errors has no
        defaults: its values are those that the user wrote."""
        return leaves({**self.head, **self.sections}, self.tree)

    def is_written(self, path: str) -> bool:
        """Return whether the recipe has a value at a dotted path; False if the value is a default."""
        return find(self.tree, tuple(path.split("."))) is not None

    def _section(self, name: str, kind: type[T]) -> T | None:
        found = self.sections.get(name)
        return found if isinstance(found, kind) else None

    @property
    def data(self) -> DataSection | None:
        return self._section("data", DataSection)

    @property
    def objective(self) -> ObjectiveSection | None:
        return self._section("objective", ObjectiveSection)

    @property
    def training(self) -> Training | None:
        return self._section("training", Training)

    @property
    def evaluation(self) -> Evaluation | None:
        return self._section("evaluation", Evaluation)

    @property
    def parallelism(self) -> Parallelism | None:
        """Section `parallelism`; None if it has errors or is `auto`."""
        found = self.sections.get("parallelism")
        return found if isinstance(found, Parallelism) else None

    @property
    def axes(self) -> Axes | None:
        return self._section("parallelism", Axes)

    @property
    def pipeline(self) -> PipelineAxis | None:
        return None if self.parallelism is None else self.parallelism.pipeline

    @property
    def layout(self) -> Layout | None:
        return self._section("layout", Layout)

    @property
    def checkpoint(self) -> Checkpoint | None:
        return self._section("checkpoint", Checkpoint)

    @property
    def sweep(self) -> Sweep | None:
        return self._section("sweep", Sweep)

    @property
    def logging(self) -> Logging | None:
        return self._section("logging", Logging)
