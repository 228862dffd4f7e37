"""A model's text -> what `expand` makes of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from declarative_train.components.layers import LAYERS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.recipe.model.expand import Expanded, expand
from declarative_train.recipe.model.tree import BlockNode, ModelNode, Scope
from declarative_train.source.reader import read_text
from declarative_train.source.template import Templates

PATH = "model.yaml"


class Opened:
    """`expanded` is None when there are errors."""

    def __init__(self, text: str, expanded: Expanded | None, diagnostics: list[Diagnostic]) -> None:
        self.text, self.expanded, self.diagnostics = text, expanded, diagnostics

    @property
    def scope(self) -> Scope:
        assert self.expanded is not None, [f"{d.span} {d.code} {d.message}" for d in self.diagnostics]
        return self.expanded.scope

    @property
    def codes(self) -> list[str]:
        return [diagnostic.code for diagnostic in self.diagnostics]

    @property
    def only(self) -> Diagnostic:
        assert len(self.diagnostics) == 1, [f"{d.span} {d.code} {d.message}" for d in self.diagnostics]
        return self.diagnostics[0]

    def under(self, span: Span) -> str:
        """The text that a caret stands under."""
        assert span.path == PATH
        assert span.line == span.end_line
        return self.text.splitlines()[span.line - 1][span.column - 1 : span.end_column - 1]

    def said(self) -> list[tuple[str, str]]:
        """Code and text under the caret, of every diagnostic."""
        return [(diagnostic.code, self.under(diagnostic.span)) for diagnostic in self.diagnostics]

    def nodes(self) -> Iterator[ModelNode]:
        """Every node, of nested blocks too."""
        yield from _nodes(self.scope)

    def node(self, path: str) -> ModelNode:
        return next(node for node in self.nodes() if node.path == path)


def _nodes(scope: Scope) -> Iterator[ModelNode]:
    for node in scope.nodes:
        yield node
        if isinstance(node, BlockNode):
            yield from _nodes(node.scope)


Open = Callable[..., Opened]


@pytest.fixture
def open_model() -> Open:
    def open_(
        text: str,
        *,
        fields: Collection[str] = ("pixels",),
        objective: Collection[str] | None = ("logits",),
        vars: Mapping[str, object] | None = None,
    ) -> Opened:
        root, problems = read_text(PATH, text)
        assert root is not None
        assert not problems, problems
        names = {"vars": vars or {}, "env": {}}
        at = Span(PATH, 1, 1, 1, 2)
        references = None if objective is None else [(text, at) for text in objective]
        return Opened(text, *expand(root, fields, names, Templates(), LAYERS, objective=references))

    return open_
