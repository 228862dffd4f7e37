"""linear-after-linear (G026)

Finds: a linear layer that reads another linear layer with nothing between them, unless the first one has fewer outputs
       than both its inputs and the outputs of the second.
Why:   the two compute no more than one linear layer does, with more parameters; an activation was probably forgotten.
       With fewer values between them, they are a factorised layer, which saves parameters.
Diff:
    model:
      graph:
        hidden: {type: linear, out_features: 64, input: pixels}
-       act: {type: linear, out_features: 64}
+       act: {type: relu}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.graph.graph import Graph
from declarative_train.recipe.model.tree import BlockNode, LayerNode, ModelNode, Scope


def check(scope: Scope, graph: Graph) -> Iterator[Diagnostic]:
    """Yield a warning for each pair of linear layers, one reading the other, that compute no more than a single layer
    could. For the copies of a repeated layer there is one warning. `graph`: the model of `scope` with its shapes."""
    found = {each.span: each for each in reversed(list(_find_pairs(scope, graph)))}
    yield from reversed(found.values())


def _find_pairs(scope: Scope, graph: Graph) -> Iterator[Diagnostic]:
    layers = {node.name: node for node in scope.nodes}
    readers = Counter([*graph.outputs.values(), *(edge for node in graph.nodes for edge in node.inputs.values())])
    for node in graph.nodes:
        written = layers[node.name]
        if isinstance(written, BlockNode) and node.graph is not None:
            yield from _find_pairs(written.scope, node.graph)
        elif _is_linear(written):
            (middle,) = node.inputs.values()
            first = layers.get(middle.partition(":")[0])
            if first is None or not _is_linear(first) or readers[middle] > 1:
                continue
            (start,) = graph.node(first.name).inputs.values()
            widths = [graph.spec(edge).shape[-1] for edge in (start, middle, f"{node.name}:output")]
            if widths[1] >= min(widths[0], widths[2]):
                message = (
                    f"`{written.path}` reads the linear layer `{first.path}` directly: they compute what one could"
                )
                hint = "put an activation between them, such as `{type: relu}`"
                yield warning("G026", written.span, message, hint, (Related(first.span, f"`{first.path}`"),))


def _is_linear(node: ModelNode) -> bool:
    return isinstance(node, LayerNode) and node.layer.type == "linear" and len(node.inputs) == 1
