"""What the user asked for: every section read and checked, blocks opened, and where each value was typed."""

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from typing import NamedTuple

from pydantic import BaseModel

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
from declarative_train.source.node import Mapping, Node, Path, Scalar, Sequence, find, to_value
from declarative_train.terms.duration import Duration
from declarative_train.terms.span import Span


class Weights(NamedTuple):
    """Start values for the parameters below `node` ("" for all); `path` is absolute or a URL."""

    node: str
    path: str
    rename: MappingABC[str, str | None]
    span: Span
    statistics: str = "run"
    format: str | None = None


class Model(NamedTuple):
    scope: Scope
    rules: tuple[ParameterRule, ...]
    weights: tuple[Weights, ...]


class Leaf(NamedTuple):
    """A value of the resolved recipe. `span` None: nobody wrote it, it is the default."""

    path: Path
    value: object
    span: Span | None


class Spans:
    """Where the values of a tree were typed."""

    def __init__(self, root: Mapping) -> None:
        self._root = root

    def __call__(self, path: str | Path) -> Span:
        """Of the value, or of its nearest ancestor that was written: then its key, or the file's first line."""
        parts: Path = tuple(path.split(".")) if isinstance(path, str) else path
        node = find(self._root, parts)
        if node is not None and parts:
            return node.span
        return self.key(parts[:-1])

    def key(self, path: str | Path) -> Span:
        """Of the key at `path`, or of the nearest one above it that was written."""
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
    """A whole recipe that can be compiled. `tree` is the merged text with templates rendered, short forms written out
    (below model.blocks as written)."""

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

    @property
    def mode(self) -> Parallelism:
        """How it runs; only for a recipe in which the planner has replaced `auto`."""
        assert not isinstance(self.parallelism, Auto)
        return self.parallelism

    def span(self, path: str | Path) -> Span:
        """Where the value at a dotted path was typed, else the nearest ancestor that was written."""
        return Spans(self.tree)(path)

    def key_span(self, path: str | Path) -> Span:
        return Spans(self.tree).key(path)

    def leaves(self) -> Iterator[Leaf]:
        """Every value in the order of a whole recipe, defaults included, with where it was typed."""
        for name in ("requires", "name", "seed", "vars", "meta", "plugins"):
            yield from _leaves((name,), getattr(self, name), self.tree.get(name))
        for name in SECTIONS:
            if name == "model":
                yield from _written((name,), self.tree.get(name))
            else:
                yield from _leaves((name,), getattr(self, name), self.tree.get(name))


def _leaves(path: Path, value: object, node: Node | None) -> Iterator[Leaf]:
    """Of a model: its fields, those of its component beside them; of a mapping or list: what it holds."""
    if isinstance(value, BaseModel):
        for name, info in type(value).model_fields.items():
            inner, key = getattr(value, name), info.alias or name
            if isinstance(value, Section) and name == value.inline:
                yield from _leaves(path, inner, node)
            elif inner is not None:
                yield from _leaves((*path, key), inner, node.get(key) if isinstance(node, Mapping) else None)
    elif isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _leaves((*path, key), inner, node.get(str(key)) if isinstance(node, Mapping) else None)
    elif value not in (None, {}, ()):
        shown = str(value) if isinstance(value, Duration) else value
        if isinstance(node, Scalar) and node.value == value:
            shown = node.value  # 30, where the model holds 30.0
        yield Leaf(path, shown, None if node is None else node.span)


def _written(path: Path, node: Node | None) -> Iterator[Leaf]:
    """As it was typed."""
    if isinstance(node, Mapping):
        for entry in node:
            yield from _written((*path, entry.name), entry.value)
    elif isinstance(node, Sequence):
        yield Leaf(path, to_value(node), node.span)
    elif isinstance(node, Scalar):
        yield Leaf(path, node.value, node.span)
