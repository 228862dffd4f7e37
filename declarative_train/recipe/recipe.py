"""Recipe: the checked sections, the model with its blocks expanded, and the span of each value."""

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
    """Start values, from a file or a run, for the parameters inside `node`, a node of the model ("": the whole model).
    `path`: absolute path of the file or run, or a URL.
    """

    node: str
    path: str
    rename: MappingABC[str, str]
    span: Span
    statistics: str = "run"
    format: str | None = None
    exclude: tuple[str, ...] = ()


class Model(NamedTuple):
    """Checked section `model` of a recipe: the graph with blocks expanded, and the entries of `parameters` and
    `weights`."""

    scope: Scope
    rules: tuple[ParameterRule, ...]
    weights: tuple[Weights, ...]


class Spans:
    """Spans of the values of a recipe, by path: `Spans(root)("training.epochs")`."""

    def __init__(self, root: Mapping) -> None:
        self._root = root

    def __call__(self, path: str | Path) -> Span:
        """Return the span of the value at a path. If there is no such value, return the span of the innermost key
        around it, or of the start of the file.
        """
        parts: Path = tuple(path.split(".")) if isinstance(path, str) else path
        node = find(self._root, parts)
        if node is not None and parts:
            return node.span
        return self.key(parts[:-1])

    def key(self, path: str | Path) -> Span:
        """Return the span of the key at a path. If there is no such key, return the span of the innermost key around
        it, or of the start of the file.
        """
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
    """Recipe without errors. `tree`: the merged YAML, with templates rendered and short forms expanded. Only
    `model.blocks` in this tree still has its templates and short forms."""

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
        """Value of the section `parallelism`: `Axes` or `Dp`. Call it only after the planner has replaced `Auto`."""
        assert not isinstance(self.parallelism, Auto)
        return self.parallelism

    @property
    def wires_read(self) -> frozenset[str]:
        """Names of the fields that the model reads, and of fields, nodes and outputs that losses and metrics read."""
        terms = (*self.objective.losses.values(), *self.objective.metrics.values())
        named = (getattr(term, key) for term in terms for key in ("input", "target", "mask"))
        return frozenset({*self.model.scope.inputs, *(name for name in named if name is not None)})

    def span(self, path: str | Path) -> Span:
        """Return the span of the value at a dotted path. If there is no such value, return the span of the innermost
        key around it, or of the start of the file.
        """
        return Spans(self.tree)(path)

    def key_span(self, path: str | Path) -> Span:
        return Spans(self.tree).key(path)

    def leaves(self) -> Iterator[Leaf]:
        """Yield a Leaf for each scalar and each list of the recipe, defaults included, in the standard order of a
        recipe."""
        values = {name: self.section(name) for name in (*HEAD, *SECTIONS)}
        return leaves(values, self.tree)
