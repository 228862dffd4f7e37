"""Check whether a model can be divided along the `context` axis, whose ranks divide the positions of a sequence.

Each position of a node's output must depend only on the same position of its inputs, or the node must exchange data
itself, as self-attention does. A layer may also return a value without positions that is equal on all ranks, as `moe`
does with its balance loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative_train.components.adapters.adapted import Adapted
from declarative_train.components.expressions.functions import ELEMENTWISE, INDEX, VIEWS
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.tree import Constant, Operation, Reference, Term
from declarative_train.core.cuts import LayerCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.read import read_layer


def find_mixing(graph: Graph, length: int, plugins: Sequence[str], prefix: str = "") -> str:
    """Return a text that names the first node that mixes positions, with the reason; "" if no node does. `length`:
    number of positions of a sequence. `prefix`: path of the block whose graph is `graph`, with a dot at the end."""
    specs, nodes = graph.specs(), {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        made = nodes[node.target] if node.target is not None else node
        given = {port: specs[edge] for port, edge in node.inputs.items()}
        reason = _reason(made, given, node.outputs, length, plugins, f"{prefix}{made.name}")
        if reason:
            return reason
    return ""


def _reason(
    node: Node,
    given: dict[str, TensorSpec],
    made: dict[str, TensorSpec],
    length: int,
    plugins: Sequence[str],
    path: str,
) -> str:
    if node.graph is not None:
        return find_mixing(node.graph, length, plugins, f"{path}.")
    allowed: tuple[str, ...] = ()  # ports and outputs without positions
    depth = None
    if node.component is not None:
        layer = read_layer(node.component, plugins)
        layer = layer.base if isinstance(layer, Adapted) else layer
        known, each = layer.cut("positions", given, 1), layer.cut("tokens", given, 1)
        allowed = known.whole if isinstance(known, LayerCut) else ()
    else:
        depths = {name: len(spec.shape) for name, spec in given.items()}
        depth = _depth_of(parse(node.expression or "").root, depths)
        if depth == 0 and not any(depths.values()):
            return ""  # input and output have no positions
    whole = [name for name in given if name not in allowed and given[name].shape[:1] != (length,)]
    if whole:
        return f"`{whole[0]}` of `{path}` {given[whole[0]]} does not begin with the {length} positions"
    if node.component is not None:
        is_wide = all(len(spec.shape) > 1 for spec in given.values())
        if not (isinstance(known, LayerCut) or (isinstance(each, LayerCut) and is_wide)):
            return f"`{path}` mixes positions: {known or f'a layer `{layer.type}`'}"
    elif depth is None:
        return f"`{path}` may mix positions"
    if any(name not in allowed and spec.shape[:1] != (length,) for name, spec in made.items()):
        return f"`{path}` gives a value without positions"
    return ""


_REDUCTIONS = frozenset(
    ("all", "amax", "amin", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod", "std")
) | {"sum", "var"}
_ALONG = frozenset(("cumsum", "flip", "log_softmax", "normalize", "roll", "softmax", "topk", "topk_indices"))


def _depth_of(term: Term, depths: Mapping[str, int]) -> int | None:
    """Return the number of dimensions that the result of an expression has for one sample; 0 for a number. Return None
    if an entry of the result may depend on several positions of the sequence. `depths`: number of dimensions of each
    input for one sample, by name."""
    if isinstance(term, Constant):
        return 0
    if isinstance(term, Reference):
        return depths[term.text]
    if not isinstance(term, Operation):
        return None
    found = [_depth_of(operand, depths) for operand in term.operands]
    if None in found:
        return None
    sizes = {size for size in found if size}
    depth = max(sizes, default=0)
    if len(sizes) > 1:
        return None  # broadcasting aligns the last dimensions, so positions may meet another dimension
    if term.name in ELEMENTWISE and term.name not in VIEWS:
        return depth
    if term.name == INDEX:
        return _find_index_depth(term.options["index"], depth)
    if term.name == "one_hot":
        return depth + 1
    made = depth + (term.name == "unsqueeze")
    asked = term.options.get("dim", term.options.get("dims"))
    dims = asked if isinstance(asked, tuple) else (asked,)
    if not all(isinstance(dim, int) and (dim if dim >= 0 else made + 1 + dim) > 1 for dim in dims):
        return None
    if term.name in _ALONG or term.name == "unsqueeze":
        return made
    if term.name not in _REDUCTIONS:
        return None
    return depth if term.options.get("keepdim") else depth - len(dims)


def _find_index_depth(index: object, depth: int) -> int | None:
    """Return the number of dimensions of `x[index]` without the batch dimension; `depth` is this number for the tensor
    `x`. Return None if the index may drop a sample (dimension 0) or a position (dimension 1), or has items other than
    integers, slices and `...`."""
    items = index if isinstance(index, tuple) else (index,)
    is_known = all(item is Ellipsis or isinstance(item, int | slice) for item in items)
    if items[:1] == (Ellipsis,):
        is_whole = len(items) <= depth
    else:
        is_whole = all(item == slice(None) for item in items[:2]) and Ellipsis not in items
    return depth - sum(isinstance(item, int) for item in items) if is_known and is_whole else None
