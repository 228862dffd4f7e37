"""Operations of nodes, next to torch's own counter, for every layer of the table and for expressions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from declarative_train.components.expressions.grammar import parse
from declarative_train.components.layers import LAYERS
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.build import build
from declarative_train.graph.cost import Work, work_of
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.probe import probe_expression, probe_layer
from tests.alone import TYPES
from tests.components.test_layers_all import CASES, Case

ROWS = 2
WITH_PRODUCTS = {
    *("bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    *(
        "cross_attention",
        "gru",
        "latent_attention",
        "linear",
        "lstm",
        "moe",
        "patch_embedding",
        "rnn",
        "self_attention",
    ),
}
NOT_COUNTED = "bilinear"  # one operation of torch's, which its counter does not know
ALL = [
    pytest.param(kind, at, marks=pytest.mark.packs if kind in TYPES else ())
    for kind, cases in CASES.items()
    for at in range(len(cases))
    if kind != NOT_COUNTED
]
LEARNT_BEFORE = {"type": "prelu"}  # a parameter, and no matrix product


def layer(name: str, fields: Mapping[str, object], specs: Mapping[str, TensorSpec], wires: Mapping[str, str]) -> Node:
    made = LAYERS[str(fields["type"])].model_validate(fields)
    outputs = dict(zip(made.outputs, probe_layer(made, specs, specs).outputs, strict=True))
    return Node(name, "layer", dict(wires), outputs, component=made.model_dump(mode="json"))


def graph_of(kind: str, case: Case, *, behind_a_parameter: bool) -> Graph:
    """The layer on data, or on what has been learnt."""
    fields, specs = case
    inputs = {port.replace(".", "_"): spec for port, spec in specs.items()}
    before, wires = [], {}
    for port, spec in specs.items():
        name = port.replace(".", "_")
        wires[port] = name
        if behind_a_parameter and spec.is_floating:
            before.append(layer(f"learnt_{name}", LEARNT_BEFORE, {"x": spec}, {"x": name}))
            wires[port] = f"learnt_{name}:output"
    node = layer("node", {"type": kind, **fields}, specs, wires)
    return Graph(inputs, (*before, node), {name: f"node:{name}" for name in node.outputs})


def counted(graph: Graph, frozen: tuple[str, ...] = ()) -> tuple[int, int]:
    """By torch, per sample: forward and backward."""
    model = build(graph).double()
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    rows = [example(spec) for spec in graph.inputs.values()]
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            outputs = model(*rows)
        with FlopCounterMode(display=False) as backward:
            graded = [each.sum() for each in outputs if each.requires_grad]
            if graded:
                torch.stack(graded).sum().backward()
    return forward.get_total_flops() // ROWS, backward.get_total_flops() // ROWS


def example(spec: TensorSpec) -> torch.Tensor:
    if spec.is_floating:
        return torch.randn((ROWS, *spec.shape), dtype=torch.float64)
    return torch.ones((ROWS, *spec.shape), dtype=getattr(torch, spec.dtype))


def estimated(graph: Graph, frozen: tuple[str, ...] = ()) -> tuple[int, int]:
    shapes = {name: tuple(item.shape) for name, item in build(graph, device="meta").named_parameters()}
    works = [work for each in work_of(graph, shapes, frozen).values() for work in each]
    return sum(work.forward for work in works), sum(work.backward for work in works)


@pytest.mark.parametrize("behind", [False, True], ids=["on data", "behind a parameter"])
@pytest.mark.parametrize(("kind", "position"), ALL)
def test_a_layer_costs_what_torch_counts(kind: str, position: int, behind: bool) -> None:
    graph = graph_of(kind, CASES[kind][position], behind_a_parameter=behind)
    found = estimated(graph)
    forward, backward = counted(graph)
    # torch forgets the groups of a convolution where it counts the gradient of its weight
    groups = 1 if kind == "moe" else CASES[kind][position][0].get("groups", 1)
    forgotten = (groups - 1) * forward
    assert found == (forward, backward - forgotten)
    assert (found[0] > 0) is (kind in WITH_PRODUCTS)


def test_bilinear_costs_two_products() -> None:
    graph = graph_of("bilinear", CASES["bilinear"][0], behind_a_parameter=False)
    rows, out, in1, in2 = 6, 3, 8, 5
    forward = 2 * rows * out * in2 * (in1 + 1)
    assert estimated(graph) == (forward, forward)  # of the weight alone: behind it is data


@pytest.mark.parametrize("kind", ["conv2d", "cross_attention", "linear", "lstm", "self_attention"])
def test_a_frozen_layer_costs_less(kind: str) -> None:
    graph = graph_of(kind, CASES[kind][0], behind_a_parameter=True)
    names = [name for name, _ in build(graph, device="meta").named_parameters()]
    weights = tuple(name for name in names if name.startswith("node."))
    frozen = estimated(graph, weights)
    assert frozen == counted(graph, weights)
    assert frozen[1] < estimated(graph)[1]
    assert estimated(graph, tuple(names))[1] == 0


@pytest.mark.parametrize(
    ("text", "shapes", "learnt"),
    [
        ("a @ b", {"a": (3, 4), "b": (4, 5)}, ("a", "b")),
        ("a @ b", {"a": (3, 4), "b": (4, 5)}, ("a",)),
        ("softmax(a @ transpose(a, 1, 2), dim=-1) @ b", {"a": (3, 4), "b": (3, 7)}, ("a", "b")),
        ("matmul(a, b) + 1", {"a": (2, 3, 4), "b": (2, 4, 5)}, ("b",)),
        ("a + b", {"a": (3, 4), "b": (3, 4)}, ("a", "b")),
    ],
)
def test_an_expression_costs_what_torch_counts(
    text: str, shapes: dict[str, tuple[int, ...]], learnt: tuple[str, ...]
) -> None:
    specs = {name: TensorSpec(shape) for name, shape in shapes.items()}
    before = [layer(f"learnt_{name}", LEARNT_BEFORE, {"x": specs[name]}, {"x": name}) for name in learnt]
    wires = {name: f"learnt_{name}:output" if name in learnt else name for name in specs}
    output = probe_expression(parse(text), specs)
    node = Node("node", "expression", wires, {"output": output}, expression=text)
    graph = Graph(specs, (*before, node), {"node": "node:output"})
    assert estimated(graph) == counted(graph)


def test_a_layer_that_is_called_again_costs_again() -> None:
    x = TensorSpec((6, 8))
    first = layer("first", {"type": "linear", "out_features": 8}, {"x": x}, {"x": "x"})
    again = Node("again", "reuse", {"x": "first:output"}, dict(first.outputs), target="first")
    graph = Graph({"x": x}, (first, again), {"again": "again:output"})
    assert estimated(graph) == counted(graph) == (2 * 2 * 6 * 8 * 8, 3 * 2 * 6 * 8 * 8)


def test_a_block_costs_what_is_in_it() -> None:
    x = TensorSpec((6, 8))
    inner = layer("inner", {"type": "linear", "out_features": 8}, {"x": x}, {"x": "x"})
    body = Graph({"x": x}, (inner,), {"output": "inner:output"})
    block = Node("block", "block", {"x": "x"}, dict(inner.outputs), block="made", graph=body)
    again = replace(block, name="next", inputs={"x": "block:output"})
    graph = Graph({"x": x}, (block, again), {"next": "next:output"})
    assert estimated(graph) == counted(graph)


def test_traffic_is_what_goes_in_and_out_and_the_parameters() -> None:
    x = TensorSpec((6, 8))
    node = layer("node", {"type": "linear", "out_features": 3}, {"x": x}, {"x": "x"})
    graph = Graph({"x": x}, (node,), {"node": "node:output"})
    shapes = {"node.weight": (3, 8), "node.bias": (3,)}
    (work,) = work_of(graph, shapes)["node"]
    assert work == Work(2 * 6 * 8 * 3, 2 * 6 * 8 * 3, 6 * 8 + 6 * 3, prod((3, 8)) + 3)
