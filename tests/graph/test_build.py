"""Graphs by hand -> modules: names, values, sharing, initial values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import fx, nn

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.build import build, tie
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.initialise import initialise
from declarative_train.graph.partition import open_blocks, stage_graphs


@dataclass(frozen=True)
class Start:
    name: str
    init: dict[str, object] | None = None
    tie: str | None = None


def vector(width: int) -> TensorSpec:
    return TensorSpec((width,))


def linear(name: str, edge: str, width: int) -> Node:
    return Node(name, "layer", {"x": edge}, {"output": vector(width)}, {"type": "linear", "out_features": width})


def expression(name: str, text: str, inputs: dict[str, str], spec: TensorSpec) -> Node:
    return Node(name, "expression", inputs, {"output": spec}, expression=text)


def unit(width: int = 8) -> Graph:
    """A residual block: x + fc(act(norm(x)))."""
    nodes = (
        Node("norm", "layer", {"x": "x"}, {"output": vector(width)}, {"type": "layer_norm"}),
        Node("act", "layer", {"x": "norm:output"}, {"output": vector(width)}, {"type": "gelu"}),
        linear("fc", "act:output", width),
        expression("out", "x + fc", {"x": "x", "fc": "fc:output"}, vector(width)),
    )
    return Graph({"x": vector(width)}, nodes, {"out": "out:output"})


def block(name: str, edge: str, body: Graph, kind: str = "unit") -> Node:
    outputs = {output: body.spec(at) for output, at in body.outputs.items()}
    return Node(name, "block", {"x": edge}, outputs, block=kind, graph=body)


def tower() -> Graph:
    """A block that holds a repeat, as a shipped `gpt` does."""
    nodes = (
        block("layers.0", "x", unit()),
        block("layers.1", "layers.0:out", unit()),
        linear("last", "layers.1:out", 8),
    )
    return Graph({"x": vector(8)}, nodes, {"y": "last:output"})


def model() -> Graph:
    """in -> tower -> logits; `skip` also reads what `stem` made."""
    nodes = (
        linear("stem", "pixels", 8),
        block("tower", "stem:output", tower(), "tower"),
        expression(
            "mixed", "tower + stem * scale", {"tower": "tower:y", "stem": "stem:output", "scale": "scale"}, vector(8)
        ),
        linear("logits", "mixed:output", 3),
    )
    return Graph({"pixels": vector(5), "scale": vector(8)}, nodes, {"logits": "logits:output"})


def starts(module: nn.Module) -> list[Start]:
    return [Start(name) for name, _ in module.named_parameters()]


def started(graph: Graph, seed: int = 1) -> fx.GraphModule:
    module = build(graph)
    initialise(module, graph, starts(module), seed)
    return module


def test_parameters_are_named_by_the_way_to_their_node_in_the_order_of_the_graph() -> None:
    copies = [f"tower.layers.{copy}.{layer}" for copy in (0, 1) for layer in ("norm", "fc")]
    layers = ["stem", *copies, "tower.last", "logits"]
    names = [name for name, _ in build(model()).named_parameters()]
    assert names == [f"{layer}.{name}" for layer in layers for name in ("weight", "bias")]


def test_it_computes_what_the_graph_says() -> None:
    module = started(model())
    pixels, scale = torch.randn(4, 5), torch.randn(4, 8)
    get = module.get_submodule
    stem = get("stem")(pixels)
    x = stem
    for copy in ("tower.layers.0", "tower.layers.1"):
        x = x + get(f"{copy}.fc")(nn.functional.gelu(get(f"{copy}.norm")(x)))
    wanted = get("logits")(get("tower.last")(x) + stem * scale)
    (found,) = module(pixels, scale)
    torch.testing.assert_close(found, wanted)


def test_a_block_is_called_as_one_module() -> None:
    module = started(model())
    calls: list[str] = []
    for name in ("tower", "tower.layers.0", "tower.layers.1"):
        module.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    module(torch.randn(2, 5), torch.randn(2, 8))
    assert calls == ["tower.layers.0", "tower.layers.1", "tower"]


def test_a_node_that_is_called_again_is_named_once() -> None:
    nodes = (
        linear("fc", "x", 5),
        Node("again", "reuse", {"x": "fc:output"}, {"output": vector(5)}, target="fc"),
    )
    module = started(Graph({"x": vector(5)}, nodes, {"y": "again:output"}))
    assert [name for name, _ in module.named_parameters()] == ["fc.weight", "fc.bias"]
    x = torch.randn(3, 5)
    fc = module.get_submodule("fc")
    torch.testing.assert_close(module(x)[0], fc(fc(x)))


def test_several_outputs_are_taken_apart() -> None:
    spec = TensorSpec((7, 4))
    outputs = {"output": TensorSpec((7, 6)), "hidden": TensorSpec((1, 6)), "cell": TensorSpec((1, 6))}
    lstm = Node("lstm", "layer", {"x": "x"}, outputs, {"type": "lstm", "hidden_size": 6})
    last = expression("last", "lstm.hidden[:, -1]", {"lstm.hidden": "lstm:hidden"}, vector(6))
    module = started(Graph({"x": spec}, (lstm, last), {"lstm": "lstm:output", "last": "last:output"}))
    out, last_state = module(torch.randn(3, 7, 4))
    assert out.shape == (3, 7, 6)
    torch.testing.assert_close(out[:, -1], last_state)


def test_tied_parameters_are_one_object() -> None:
    module = build(model(), ties={"tower.last.weight": "tower.layers.0.fc.weight"})
    assert module.get_parameter("tower.last.weight") is module.get_parameter("tower.layers.0.fc.weight")
    assert "tower.last.weight" not in dict(module.named_parameters())


def test_start_values_depend_on_seed_and_name_alone() -> None:
    whole = build(model())
    initialise(whole, model(), starts(whole), seed=3)
    other = build(model(), device="meta")
    other.to_empty(device="cpu")
    initialise(other, model(), reversed(starts(other)), seed=3)
    for name, parameter in whole.named_parameters():
        assert torch.equal(parameter, other.get_parameter(name)), name
    assert not torch.equal(
        whole.get_parameter("tower.layers.0.fc.weight"), whole.get_parameter("tower.layers.1.fc.weight")
    )
    initialise(other, model(), starts(other), seed=4)
    assert not torch.equal(whole.get_parameter("stem.weight"), other.get_parameter("stem.weight"))


def test_a_selected_init_wins_and_a_tied_parameter_follows_its_source() -> None:
    ties = {"tower.last.weight": "tower.layers.0.fc.weight"}
    module = build(model(), device="meta", ties=ties)
    module.to_empty(device="cpu")
    tie(module, ties)  # what is moved off meta becomes a new parameter at each place
    chosen = [
        Start("tower.layers.0.fc.weight", {"type": "constant", "value": 2.5}),
        Start("tower.last.weight", tie="tower.layers.0.fc.weight"),
        *(start for start in starts(module) if start.name != "tower.layers.0.fc.weight"),
    ]
    initialise(module, model(), chosen, seed=0)
    assert torch.all(module.get_parameter("tower.last.weight") == 2.5)
    assert all(torch.isfinite(parameter).all() for parameter in module.parameters())


def test_a_stage_starts_as_the_whole_model_does() -> None:
    opened = open_blocks(model(), ["tower.layers.0", "tower.layers.1"])
    names = [node.name for node in opened.nodes]
    assert names == ["stem", "tower.layers.0", "tower.layers.1", "tower.last", "mixed", "logits"]
    whole = started(model())
    stages = stage_graphs(opened, (names[:2], names[2:3], names[3:]))
    held: list[str] = []
    for stage in stages:
        part = build(stage.graph, own_outputs=True)
        initialise(part, model(), starts(whole), seed=1)
        for name, parameter in part.named_parameters():
            assert torch.equal(parameter, whole.get_parameter(name)), name
            held.append(name)
    assert sorted(held) == sorted(name for name, _ in whole.named_parameters())


def test_stages_in_a_row_compute_what_the_whole_does() -> None:
    opened = open_blocks(model(), ["tower.layers.0", "tower.layers.1"])
    names = [node.name for node in opened.nodes]
    whole = started(model())
    batch = {"pixels": torch.randn(4, 5), "scale": torch.randn(4, 8)}
    carried: dict[str, torch.Tensor] = {}
    stages = stage_graphs(opened, (names[:2], names[2:3], names[3:]))
    assert stages[0].wires_out == ("stem", "tower.layers.0")  # `mixed` reads the stem two stages later
    assert stages[1].wires_in == stages[0].wires_out
    assert stages[1].wires_out == ("stem", "tower.layers.1")
    assert (stages[0].batch, stages[1].batch, stages[2].batch) == (("pixels",), (), ("scale",))
    for stage in stages:
        part = build(stage.graph, own_outputs=True)
        initialise(part, model(), starts(whole), seed=1)
        inputs = tuple(batch[name] if name in batch else carried[name] for name in stage.graph.inputs)
        outputs = part(*inputs)
        assert all(item.is_contiguous() and not any(item is one for one in inputs) for item in outputs)
        carried = dict(zip(stage.graph.outputs, outputs, strict=True))
    torch.testing.assert_close(carried["logits"], whole(batch["pixels"], batch["scale"])[0], rtol=0, atol=0)


def test_a_stage_gives_no_views() -> None:
    nodes = (expression("turned", "permute(x, 0, 2, 1)", {"x": "x"}, TensorSpec((3, 2))),)
    graph = Graph({"x": TensorSpec((2, 3))}, nodes, {"turned": "turned:output", "x": "x"})
    x = torch.randn(4, 2, 3)
    turned, relayed = build(graph, own_outputs=True)(x)
    assert turned.is_contiguous()
    assert not turned._is_view()
    assert relayed is not x
    assert torch.equal(relayed, x)


def test_a_block_that_is_called_again_stays_closed() -> None:
    graph = model()
    again = Node("again", "reuse", {"x": "tower:y"}, {"y": vector(8)}, target="tower")
    both = replace(graph, nodes=(*graph.nodes[:2], again, *graph.nodes[2:]))
    assert [node.name for node in open_blocks(both, ["tower.layers.0"]).nodes] == [node.name for node in both.nodes]


def test_inputs_may_have_any_name() -> None:
    fields = {name: vector(3) for name in ("class", "self", "input", "a.b", "torch")}
    nodes = (expression("all", "stack(a, b, c, d, e, dim=1)", dict(zip("abcde", fields, strict=True)), vector(3)),)
    (found,) = build(Graph(fields, nodes, {"all": "all:output"}))(*(torch.full((2, 3), float(i)) for i in range(5)))
    assert found[0, :, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_unknown_layer_is_named() -> None:
    nodes = (Node("fc", "layer", {"x": "x"}, {"output": vector(3)}, {"type": "lineer"}),)
    with pytest.raises(LookupError, match="lineer"):
        build(Graph({"x": vector(3)}, nodes, {"y": "fc:output"}))


def test_a_shard_starts_as_its_part_of_the_whole() -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore

    whole = started(model())
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        part = build(model(), device="meta")
        for path, layer in part.named_modules():
            for name, parameter in list(layer.named_parameters(recurse=False)):
                empty = torch.empty(parameter.shape)
                sharded = distribute_tensor(empty, mesh, [Shard(0)], src_data_rank=None)
                layer.register_parameter(name, nn.Parameter(sharded))
            assert path is not None
        initialise(part, model(), starts(whole), seed=1)
        for name, parameter in whole.named_parameters():
            held = part.get_parameter(name).to_local()  # type: ignore[attr-defined]
            rest = parameter.chunk(2)[1:]
            assert torch.equal(held, rest[0] if rest else held[:0]), name
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "name",
    ["self", "torch", "operator", "getattr", "device", "inf", "nan", "x", "fx_pytree", "Tensor", "List", "super"],
)
def test_a_node_may_be_called_what_the_code_of_the_graph_uses(name: str) -> None:
    """Called twice: the first call must not leave the name behind empty."""

    def graph(called: str) -> Graph:
        inner = Graph({called: vector(8)}, (linear("fc", called, 8),), {"out": "fc:output"})
        nodes = (
            linear(called, "in", 8),
            block("unit", f"{called}:output", inner),
            expression("twice", f"{called} * 2 + unit", {called: f"{called}:output", "unit": "unit:out"}, vector(8)),
            linear("last", "twice:output", 8),
        )
        nodes = (*nodes[:1], replace(nodes[1], inputs={called: f"{called}:output"}), *nodes[2:])
        return Graph({"in": vector(8)}, nodes, {"y": "last:output"})

    torch.manual_seed(0)
    plain = build(graph("plain"))
    found = build(graph(name))
    for old, new in zip(plain.parameters(), found.parameters(), strict=True):
        new.data.copy_(old.data)
    x = torch.rand(2, 8)
    assert torch.equal(found(x)[0], plain(x)[0])
