"""Paths in a recipe, made absolute. A path is relative to the folder of the file that contains it. In an option
`--set`, it is relative to the working directory.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from declarative_train.components.data import Dataset, Field
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.components.registry import Registry
from declarative_train.core.span import Span
from declarative_train.source.document import Document
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence

_OF_SOURCES = ("path", "root", "folder")  # plugins use the last two


class Paths(NamedTuple):
    """Resolver of the paths in a recipe. `files`: paths of the recipe's files. If the path of a span is none of these,
    the value was written in a `--set` option.
    """

    files: frozenset[str]

    @classmethod
    def of(cls, document: Document) -> Paths:
        return cls(frozenset(file.path for file in document.files))

    def resolve(self, path: str, span: Span) -> str:
        """Return a path of the recipe as an absolute path. `span`: where the path is written. A URL is returned
        unchanged, but a local path at the end of a chained URL (`zip://*.csv::data.zip`) becomes absolute.
        """
        links, chain, path = path.rpartition("::")
        if "://" in path:
            return links + chain + path
        path = os.path.expanduser(path)
        folder = os.path.dirname(span.path) if span.path in self.files else ""
        return links + chain + os.path.abspath(os.path.join(folder, path))

    def in_sources(self, node: Node) -> Node:
        """Return `node`, the section `data`, with the paths in sources and fields made absolute."""
        if not isinstance(node, Mapping):
            return node
        return node.with_values(self._below)

    def in_layout(self, node: Node) -> Node:
        """Return `node`, the section `layout`, with the path in `calibration` made absolute."""
        if not isinstance(node, Mapping):
            return node
        return node.with_values(lambda each: self._absolute(each.value) if each.name == "calibration" else each.value)

    def _below(self, entry: Entry) -> Node:
        if entry.name == "source" and isinstance(entry.value, Mapping):
            return self._in_component(entry, DATASETS, _OF_SOURCES)
        if entry.name == "fields" and isinstance(entry.value, Mapping):
            return entry.value.with_values(self._in_field)
        return self.in_sources(entry.value) if isinstance(entry.value, Mapping) else entry.value

    def _in_field(self, entry: Entry) -> Node:
        return self._in_component(entry, FIELDS, ("folder",)) if isinstance(entry.value, Mapping) else entry.value

    def _in_component(self, entry: Entry, table: Registry[Dataset] | Registry[Field], keys: tuple[str, ...]) -> Node:
        assert isinstance(entry.value, Mapping)
        kind = entry.value.get("type")
        found = table[str(kind.value)] if isinstance(kind, Scalar) and kind.value in table else None

        def absolute(each: Entry) -> Node:
            if each.name == "of" and isinstance(each.value, Mapping):  # the sources of a mixture
                return self.in_sources(each.value)
            if found is not None and each.name in found.path_keys:
                is_word = isinstance(each.value, Scalar) and not found.is_path(str(each.value.value))
                return each.value if is_word else self._absolute(each.value)
            return self._absolute(each.value) if each.name in keys else each.value

        return entry.value.with_values(absolute)

    def _absolute(self, node: Node) -> Node:
        if isinstance(node, Sequence):
            return Sequence(tuple(self._absolute(item) for item in node.items), node.span)
        if isinstance(node, Scalar) and isinstance(node.value, str) and node.value:
            return Scalar(self.resolve(node.value, node.span), node.text, node.span, node.quoted)
        return node
