"""Recipe: every section read and checked, blocks expanded, and the span of each value."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from typing import Any, NamedTuple

from declarative_train.core.span import Span
from declarative_train.recipe.flat_values import HEAD, Leaf, leaves
from declarative_train.recipe.model.selectors import ParameterRule
from declarative_train.recipe.model.tree import Scope
from declarative_train.recipe.sections.checkpoint import Checkpoint
from declarative_train.recipe.sections.data import DataSection
from declarative_train.recipe.sections.evaluation import Evaluation
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.logging import Logging
from declarative_train.recipe.sections.objective import ObjectiveSection
from declarative_train.recipe.sections.parallelism import Auto, Parallelism
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.sweep import Sweep
from declarative_train.recipe.sections.top import SECTIONS
from declarative_train.recipe.sections.training import Training
from declarative_train.source.document import Document
from declarative_train.source.node import Mapping, Path, Sequence, find


class Weights(NamedTuple):
    """Start values from a file or a run for the parameters below the node `node` ("" for all). `path`: absolute path,
    or a URL."""

    node: str
    path: str
    rename: MappingABC[str, str]
    span: Span
    statistics: str = "run"
    format: str | None = None
    exclude: tuple[str, ...] = ()


class Model(NamedTuple):
    scope: Scope
    rules: tuple[ParameterRule, ...]
    weights: tuple[Weights, ...]


class Spans:
    """Spans of the values of a recipe, by path."""

    def __init__(self, root: Mapping) -> None:
        self._root = root

    def __call__(self, path: str | Path) -> Span:
        """Return the span of the value at a path; if the recipe does not have it, the span of the innermost enclosing
        key that it has, or the start of the file."""
        parts: Path = tuple(path.split(".")) if isinstance(path, str) else path
        node = find(self._root, parts)
        if node is not None and parts:
            return node.span
        return self.key(parts[:-1])

    def key(self, path: str | Path) -> Span:
        """Return the span of the key at a path; if the recipe does not have it, the span of the innermost enclosing key
        that it has."""
        parts: Path = tuple(path.split(".")) if isinstance(path, str) else path
        while parts:
            holder = find(self._root, parts[:-1])
            if isinstance(holder, Mapping) and (entry := holder.entry(str(parts[-1]))) is not None:
                return entry.key.span
            if isinstance(holder, Sequence) and (item := find(self._root, parts)) is not None:
                return item.span
            parts = parts[:-1]
        root = self._root.span
        return Span(root.path, root.line, root.column, root.line, root.column + 1)


class Recipe(NamedTuple):
    """Checked recipe, which can be compiled. `tree`: the merged YAML with templates rendered and short forms expanded
    (but `model.blocks` as written)."""

    name: str
    seed: int
    meta: dict[str, object]
    data: DataSection
    model: Model
    objective: ObjectiveSection
    training: Training
    evaluation: Evaluation
    parallelism: Parallelism | Auto
    layout: Layout
    checkpoint: Checkpoint
    logging: Logging
    plugins: tuple[str, ...]
    document: Document
    tree: Mapping
    sweep: Sweep | None = None
    requires: str | None = None
    vars: MappingABC[str, object] = {}
    language: int = 1
    sections_of_packs: MappingABC[str, Section | None] = {}

    def section(self, name: str) -> Any:
        """Return the section, or the value of another top-level key, with this name."""
        return self.sections_of_packs[name] if name in self.sections_of_packs else getattr(self, name)

    @property
    def mode(self) -> Parallelism:
        """Section `parallelism`, after the planner replaced `auto`. Not for a recipe that still has `auto`."""
        assert not isinstance(self.parallelism, Auto)
        return self.parallelism

    @property
    def wires_read(self) -> frozenset[str]:
        """Names of the fields, and of outputs of fields, that the model or the objective reads."""
        terms = (*self.objective.losses.values(), *self.objective.metrics.values())
        named = (getattr(term, key) for term in terms for key in ("input", "target", "mask"))
        return frozenset({*self.model.scope.inputs, *(name for name in named if name is not None)})

    def span(self, path: str | Path) -> Span:
        """Return the span of the value at a dotted path; if the recipe does not have it, the span of the innermost
        enclosing key that it has."""
        return Spans(self.tree)(path)

    def key_span(self, path: str | Path) -> Span:
        return Spans(self.tree).key(path)

    def leaves(self) -> Iterator[Leaf]:
        """Yield every single value in the standard order of a recipe, defaults included, with its path and span."""
        values = {name: self.section(name) for name in (*HEAD, *SECTIONS)}
        return leaves(values, self.tree)
