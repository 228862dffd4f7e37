"""A graph called without `Module.__call__`: the same numbers, and what must be called as ever is."""

from __future__ import annotations

import torch

from declarative_train.graph.build import build, direct
from declarative_train.graph.graph import Graph, Node
from tests.graph.test_build import expression, linear, started, unit, vector

WIDTH = 8


def two_units() -> Graph:
    """Two blocks, the first used twice, and a layer."""
    width = {"output": vector(WIDTH)}
    nodes = (
        Node("units.0", "block", {"x": "x"}, width, block="unit", graph=unit(WIDTH)),
        Node("units.1", "block", {"x": "units.0:output"}, width, block="unit", graph=unit(WIDTH)),
        Node("again", "reuse", {"x": "units.1:output"}, width, target="units.0"),
        expression("sum", "again + x", {"again": "again:output", "x": "x"}, vector(WIDTH)),
        linear("head", "sum:output", 3),
    )
    return Graph({"x": vector(WIDTH)}, nodes, {"head": "head:output"})


def test_the_same_numbers_and_gradients() -> None:
    module, x = started(two_units()), torch.randn(5, WIDTH)
    call = direct(module)
    (wanted,) = module(x)
    wanted.sum().backward()
    gradients = {name: item.grad.clone() for name, item in module.named_parameters() if item.grad is not None}
    module.zero_grad()
    (found,) = call(x)
    found.sum().backward()
    assert torch.equal(found, wanted)
    assert gradients.keys() == dict(module.named_parameters()).keys()
    assert all(
        torch.equal(item.grad, gradients[name]) for name, item in module.named_parameters() if item.grad is not None
    )


def test_hooks_and_a_forward_of_its_own_are_heeded() -> None:
    module, x = started(two_units()), torch.randn(5, WIDTH)
    seen: list[str] = []
    module.get_submodule("head").register_forward_hook(lambda *_: seen.append("hook"))
    block = module.get_submodule("units.1")
    forward = block.forward

    def own(*inputs: torch.Tensor) -> torch.Tensor:
        seen.append("own")
        result: torch.Tensor = forward(*inputs)
        return result

    block.forward = own
    assert torch.equal(direct(module)(x)[0], module(x)[0])
    assert seen == ["own", "hook"] * 2


def test_a_compiled_module_is_called_as_one() -> None:
    module = started(two_units())
    head = module.get_submodule("head")
    head._compiled_call_impl = lambda x: torch.full((len(x), 3), 7.0)
    assert direct(module)(torch.randn(2, WIDTH))[0].tolist() == [[7.0] * 3] * 2


def test_it_follows_training_and_evaluation() -> None:
    dropped = Graph(
        {"x": vector(WIDTH)},
        (Node("drop", "layer", {"x": "x"}, {"output": vector(WIDTH)}, {"type": "dropout", "p": 0.5}),),
        {"drop": "drop:output"},
    )
    module, x = build(dropped), torch.ones(100, WIDTH)
    call = direct(module)
    assert set(call(x)[0].unique().tolist()) == {0.0, 2.0}
    module.eval()
    assert torch.equal(call(x)[0], x)
