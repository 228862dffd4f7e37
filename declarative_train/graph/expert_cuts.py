"""Expert parallelism: division of the experts of mixture-of-experts layers over the ranks of the `expert` axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from declarative_train.core.cuts import LayerCut
from declarative_train.graph.graph import Graph
from declarative_train.graph.read import read_layer


def find_expert_cuts(
    graph: Graph, size: int, plugins: Sequence[str], prefix: str = ""
) -> Iterator[tuple[str, LayerCut | str]]:
    """Yield (path, division) for each layer with experts, or (path, the reason) if `size` ranks cannot divide it.
    `prefix`: path of the block whose graph is `graph`, with a dot at the end."""
    specs = graph.specs()
    for node in graph.nodes:
        path = f"{prefix}{node.name}"
        if node.graph is not None:
            yield from find_expert_cuts(node.graph, size, plugins, f"{path}.")
        elif node.component is not None:
            inputs = {port: specs[edge] for port, edge in node.inputs.items()}
            cut = read_layer(node.component, plugins).cut("experts", inputs, size)
            if cut is not None:
                yield path, cut
