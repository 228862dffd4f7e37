"""Cost of the nodes of a graph, computed from shapes: floating-point operations and memory traffic.

Operations are counted as by torch's own counter (`torch.utils.flop_counter`): two for each multiply-add of matrix
products, convolutions and attention. Causal attention counts as much as full attention. Other nodes count as memory
traffic only. In the backward, a product is computed once for each of its two operands that needs a gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import infer
from declarative_train.components.layers import LAYERS
from declarative_train.components.matrix_products import Product, Use, Weight
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Edge, Graph, Node
from declarative_train.graph.probe import SMALL_ACTIVATIONS
from declarative_train.graph.read import is_library, read_layer

Shapes = Mapping[str, tuple[int, ...]]
T = TypeVar("T")
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True)
class Work:
    """Cost of one layer or expression for one sample.

    forward     floating-point operations of the forward
    backward    floating-point operations of the backward
    elements    tensor elements that the forward reads and writes
    parameters  elements of its parameters, which are read once for the whole batch"""

    forward: int
    backward: int
    elements: int
    parameters: int


def num_parameters(path: str, parameters: Shapes) -> int:
    """Return the number of elements of all parameters of the node at `path`. `parameters`: shapes by name."""
    return sum(prod(shape) for name, shape in parameters.items() if name.startswith(f"{path}."))


def activations(node: Node) -> int:
    """Return the number of elements, for one sample, of the outputs of a node; for a block, of the outputs of all nodes
    in it."""
    inside = sum(activations(inner) for inner in node.graph.nodes) if node.graph is not None else 0
    return inside or sum(spec.num_elements for spec in node.outputs.values())


def work_of(graph: Graph, parameters: Shapes, frozen: Collection[str] = ()) -> dict[str, tuple[Work, ...]]:
    """Return the cost of each node of `graph`, as a dict from its name to a tuple of Work. A layer or expression has
    one Work; a block has one for each layer and expression in it. `parameters`: shapes by name. `frozen`: names of
    parameters that get no gradient."""
    return measure_leaves(graph, parameters, frozen, _work)


def measure_leaves(
    graph: Graph, parameters: Shapes, frozen: Collection[str], measure: Measure[T]
) -> dict[str, tuple[T, ...]]:
    """Call `measure` with each layer and expression of `graph`, also inside its blocks. Return {name of a node of
    `graph`: results}; a block has one result for each layer and expression in it. `parameters`: shapes by name.
    `frozen`: names of parameters that get no gradient."""
    held: dict[str, list[Weight]] = defaultdict(list)
    for name, shape in parameters.items():
        parts = name.split(".")
        for end in range(1, len(parts)):
            held[".".join(parts[:end])].append(Weight(".".join(parts[end:]), shape, name not in frozen))
    return _Walk(held, measure).nodes(graph, "", dict.fromkeys(graph.inputs, False))


class Measure(Protocol[Result]):
    """Interface of the function that `measure_leaves` calls with each layer or expression.

    node     the node
    called   the node that has the component: `node` itself, or for a `reuse` the node that is called again
    specs    spec of each input by port
    graded   whether a gradient flows back into each input, by port
    weights  the node's parameters"""

    def __call__(
        self,
        node: Node,
        called: Node,
        specs: Mapping[str, TensorSpec],
        graded: Mapping[str, bool],
        weights: list[Weight],
    ) -> Result: ...


class _Walk(Generic[T]):
    """Walk through a graph and its blocks. It calls `measure` with each layer and expression, and finds out which edges
    carry a gradient in the backward."""

    def __init__(self, held: Mapping[str, list[Weight]], measure: Measure[T]) -> None:
        self._held, self._measure = held, measure

    def nodes(self, graph: Graph, prefix: str, graded: dict[Edge, bool]) -> dict[str, tuple[T, ...]]:
        """Return {name of a node in `graph`: results of `measure`}. A layer or expression has one result; a block has
        one for each layer and expression in it. `prefix`: path of the block whose graph is `graph`, with a dot at the
        end.

        `graded`: {edge: whether a gradient flows back along it}, given for the inputs of `graph`. The outputs of its
        nodes are added to this dict.
        """
        found: dict[str, tuple[T, ...]] = {}
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
                found[node.name] = (self._measure(node, called, specs, ports, weights),)
                outputs = dict.fromkeys(node.outputs, any(ports.values()) or any(each.is_trained for each in weights))
            graded |= {f"{node.name}:{name}": outputs[name] and node.outputs[name].is_floating for name in node.outputs}
        return found


def _work(
    node: Node, called: Node, specs: Mapping[str, TensorSpec], graded: Mapping[str, bool], weights: list[Weight]
) -> Work:
    if called.expression is not None:
        products = matmuls(called.expression, tuple(specs.items()), tuple(graded.items()))
    else:
        assert called.component is not None
        products = _products(called.component, Use(specs, next(iter(node.outputs.values())), graded, tuple(weights)))
    read = sum(spec.num_elements for spec in specs.values())
    is_lookup = not any(spec.is_floating for spec in specs.values()) and not is_library(called.component)
    return Work(
        forward=sum(flops for flops, _ in products),
        backward=sum(flops * sides for flops, sides in products),
        elements=read + sum(spec.num_elements for spec in node.outputs.values()),
        parameters=0 if is_lookup else sum(prod(each.shape) for each in weights),
    )


def _products(component: Mapping[str, object], use: Use) -> tuple[Product, ...]:
    """Return the matrix products that a layer computes. `component`: keys of the layer. `use`: the shapes of its
    inputs, output and weights. For a plugin's layer the products are estimated from its weights: a weight with two
    dimensions multiplies each vector of the input, a weight with more dimensions is the kernel of a convolution."""
    if not any(spec.is_floating for spec in use.inputs.values()) and not is_library(component):
        return ()
    if component["type"] in LAYERS:
        return tuple(read_layer(component).products(use))
    first, sides = next(iter(use.inputs.values())), int(any(use.graded.values()))
    rows = max(1, first.num_elements // first.shape[-1]) if first.shape else 1
    return tuple(
        Product(
            2 * prod(each.shape) * (rows if len(each.shape) == 2 else max(1, use.output.num_elements // each.shape[0])),
            sides + each.is_trained,
        )
        for each in use.matrices
    )


@lru_cache(maxsize=256)
def matmuls(
    text: str, inputs: tuple[tuple[str, TensorSpec], ...], graded: tuple[tuple[str, bool], ...]
) -> tuple[Product, ...]:
    """Return the matrix products that the expression `text` computes for one sample. `inputs`: (name, spec) of each
    input. `graded`: (name, whether a gradient flows back into the input)."""
    if "@" not in text and "matmul" not in text:
        return ()
    wants = dict(graded)
    num_elements = sum(spec.num_elements for _, spec in inputs)
    device = torch.device("cpu" if num_elements <= SMALL_ACTIVATIONS else "meta")
    tensors = {name: _example(spec, wants[name], device) for name, spec in inputs}
    counting = _FlopCounting()
    with torch.enable_grad(), counting:
        infer(parse(text), tensors)
    return tuple(counting.found)


def _example(spec: TensorSpec, wants_gradient: bool, device: torch.device) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    made = torch.ones((1, *spec.shape), dtype=dtype, device=device)
    return made.requires_grad_(wants_gradient and spec.is_floating)


class _FlopCounting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Product] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in ("matmul", "__matmul__", "__rmatmul__"):
            first, second = args[:2]
            sides = int(first.requires_grad) + int(second.requires_grad)
            self.found.append(Product(2 * result.numel() * first.shape[-1], sides))
        return result
