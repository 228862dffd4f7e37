"""What the nodes of a graph cost, from shapes: for balanced cuts, for the sizes and times of a plan, for utilisation.

Counted as torch's own counter does (`torch.utils.flop_counter`, and a test holds both side by side): matrix products,
convolutions and attention, two operations for each multiply-add; attention in full, also where it is causal. Look-ups,
norms and what works element by element count as memory traffic only. In the backward a product costs as much again for
each of its two sides that wants a gradient: nothing for frozen parameters, nor for the way back into the data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

from declarative_train.components.layers import LAYERS
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.matmuls import matmuls
from declarative_train.terms.tensor_spec import TensorSpec

Shapes = Mapping[str, tuple[int, ...]]
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "patch_embedding"})
_TRANSPOSED = frozenset({"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"})
_RECURRENT = frozenset({"gru", "lstm", "rnn"})


@dataclass(frozen=True, slots=True)
class Work:
    """One layer or expression at work on one sample: floating-point operations both ways, the elements that its forward
    reads and gives, and the parameters that it reads (for the whole batch at once)."""

    forward: int
    backward: int
    elements: int
    parameters: int


@dataclass(frozen=True, slots=True)
class _Weight:
    """By its name within the layer."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool


_Product = tuple[int, int]  # operations, and how many of the two sides want a gradient


def num_parameters(path: str, parameters: Shapes) -> int:
    """Elements of all parameters at and below a path."""
    return sum(prod(shape) for name, shape in parameters.items() if name.startswith(f"{path}."))


def activations(node: Node) -> int:
    """Elements per sample of everything that a node and the nodes inside of it give."""
    inside = sum(activations(inner) for inner in node.graph.nodes) if node.graph is not None else 0
    return inside or sum(spec.num_elements for spec in node.outputs.values())


def work_of(graph: Graph, parameters: Shapes, frozen: Collection[str] = ()) -> dict[str, tuple[Work, ...]]:
    """For each node of the graph: the work of the layers and expressions in it. `frozen` parameters learn nothing."""
    held: dict[str, list[_Weight]] = defaultdict(list)
    for name, shape in parameters.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            held[".".join(parts[:end])].append(_Weight(".".join(parts[end:]), shape, name not in frozen))
    return _Walk(held).nodes(graph, "", dict.fromkeys(graph.inputs, False))


class _Walk:
    """Through nested graphs, in order, so that for each edge it is known whether a gradient goes back along it."""

    def __init__(self, held: Mapping[str, list[_Weight]]) -> None:
        self._held = held

    def nodes(self, graph: Graph, prefix: str, graded: dict[Edge, bool]) -> dict[str, tuple[Work, ...]]:
        """`graded` is known for the inputs, and filled for the outputs of all nodes."""
        found: dict[str, tuple[Work, ...]] = {}
        known = graph.specs()
        for node in graph.nodes:
            called = graph.node(str(node.target)) if node.kind == "reuse" else node
            path = f"{prefix}{called.name}"
            ports = {port: graded[edge] for port, edge in node.inputs.items()}
            if called.graph is not None:
                inner = {name: ports.get(name, False) for name in called.graph.inputs}
                works = self.nodes(called.graph, f"{path}.", inner)
                found[node.name] = tuple(work for each in works.values() for work in each)
                outputs = {name: inner[edge] for name, edge in called.graph.outputs.items()}
            else:
                specs = {port: known[edge] for port, edge in node.inputs.items()}
                weights = self._held.get(path, [])
                found[node.name] = (_work(node, called, specs, ports, weights),)
                outputs = dict.fromkeys(node.outputs, any(ports.values()) or any(each.is_trained for each in weights))
            graded |= {f"{node.name}:{name}": outputs[name] and node.outputs[name].is_floating for name in node.outputs}
        return found


def _work(
    node: Node, called: Node, specs: Mapping[str, TensorSpec], graded: Mapping[str, bool], weights: list[_Weight]
) -> Work:
    if called.expression is not None:
        products = matmuls(called.expression, tuple(specs.items()), tuple(graded.items()))
    else:
        products = tuple(_products(node, called, specs, graded, weights))
    read = sum(spec.num_elements for spec in specs.values())
    is_lookup = not any(spec.is_floating for spec in specs.values())
    return Work(
        forward=sum(flops for flops, _ in products),
        backward=sum(flops * sides for flops, sides in products),
        elements=read + sum(spec.num_elements for spec in node.outputs.values()),
        parameters=0 if is_lookup else sum(prod(each.shape) for each in weights),
    )


def _products(
    node: Node, called: Node, specs: Mapping[str, TensorSpec], graded: Mapping[str, bool], weights: list[_Weight]
) -> Iterable[_Product]:
    """The matrix products of a layer. Of a plugin's weights with two or more dimensions each is taken for one."""
    assert called.component is not None
    kind = str(called.component["type"])
    if not any(spec.is_floating for spec in specs.values()):
        return ()
    first, output = next(iter(specs.values())), next(iter(node.outputs.values()))
    if kind == "self_attention" or kind == "cross_attention":
        return _attention(specs, graded, weights)
    if kind in _RECURRENT:
        return _recurrent(_rows(first), any(graded.values()), weights)
    matrices = [each for each in weights if len(each.shape) > 1]
    sides = int(any(graded.values()))
    if kind == "linear":
        return [(2 * prod(each.shape) * _rows(first), sides + each.is_trained) for each in matrices]
    if kind == "bilinear":
        return _bilinear(_rows(first), list(graded.values()), matrices)
    if kind in _CONVOLUTIONS:
        return [(2 * output.num_elements * prod(each.shape[1:]), sides + each.is_trained) for each in matrices]
    if kind in _TRANSPOSED:
        return [(2 * first.num_elements * prod(each.shape[1:]), sides + each.is_trained) for each in matrices]
    if kind in LAYERS:
        return ()
    return [(_guessed(each.shape, first, output), sides + each.is_trained) for each in matrices]


def _rows(spec: TensorSpec) -> int:
    """Vectors of the last dimension."""
    return max(1, spec.num_elements // spec.shape[-1]) if spec.shape else 1


def _guessed(shape: tuple[int, ...], first: TensorSpec, output: TensorSpec) -> int:
    """A matrix for each vector, anything larger for each place of the result, as in a convolution."""
    return 2 * prod(shape) * (_rows(first) if len(shape) == 2 else max(1, output.num_elements // shape[0]))


def _attention(
    specs: Mapping[str, TensorSpec], graded: Mapping[str, bool], weights: list[_Weight]
) -> Iterator[_Product]:
    """Projections of T queries and S keys; then queries with keys, and weights with values."""
    (query, *_), context = specs, "context" if "context" in specs else next(iter(specs))
    T, S = specs[query].shape[0], specs[context].shape[0]
    inside = graded[query] or graded[context] or any(each.is_trained for each in weights)
    for each in weights:
        if len(each.shape) < 2:
            continue
        name = each.name.partition(".")[0]
        source = context if name in ("key", "value", "key_value") else query
        rows, side = (T, inside) if name == "out" else (specs[source].shape[0], graded[source])
        yield 2 * prod(each.shape) * rows, side + each.is_trained
        if name == "out":
            yield 4 * T * S * each.shape[1], 2 * inside


def _recurrent(steps: int, is_graded: bool, weights: list[_Weight]) -> Iterator[_Product]:
    """At every step, each gate's matrices. The state before the first step wants no gradient."""
    inside = is_graded or any(each.is_trained for each in weights)
    for each in weights:
        if len(each.shape) < 2:
            continue
        operations = 2 * prod(each.shape)
        if each.name.startswith("weight_hh"):
            yield operations, int(each.is_trained)
            yield operations * (steps - 1), inside + each.is_trained
        else:
            side = is_graded if each.name.startswith("weight_ih_l0") else inside
            yield operations * steps, side + each.is_trained


def _bilinear(rows: int, graded: list[bool], matrices: list[_Weight]) -> Iterator[_Product]:
    """The first input with the weight (out, in1, in2), then the second with what that gives."""
    for each in matrices:
        out, _, second = each.shape
        yield 2 * prod(each.shape) * rows, graded[0] + each.is_trained
        yield 2 * out * second * rows, graded[1] + (graded[0] or each.is_trained)
