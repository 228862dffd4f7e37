"""A node may be called like any method of a torch module: its parameters are called as in the recipe, and torch's
method stays."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import fx, nn

from declarative_train.core.names import is_name
from declarative_train.graph.build import build
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.module_names import Named, for_tools, is_of_torch
from tests.graph.test_build import block, linear, started, vector

TORCHS = sorted(name for name in dir(fx.GraphModule(nn.Module(), fx.Graph())) if is_name(name))
WORDS = ("forward", "training", "parameters", "state_dict", "meta", "get_submodule", "self")


def chain(names: tuple[str, ...]) -> Graph:
    nodes, edge = [], "x"
    for name in names:
        nodes.append(linear(name, edge, 8))
        edge = f"{name}:output"
    return Graph({"x": vector(8)}, tuple(nodes), {"out": edge})


def nested(name: str, inner: tuple[str, ...]) -> Graph:
    """Blocks inside a block of a plain name, twice, and a layer that is called again."""
    nodes = (
        block(f"{name}.0", "x", chain(inner)),
        block(f"{name}.1", f"{name}.0:out", chain(inner)),
        linear("last", f"{name}.1:out", 8),
        Node("again", "reuse", {"x": "last:output"}, {"output": vector(8)}, target="last"),
    )
    outer = Graph({"x": vector(8)}, nodes, {"out": "again:output"})
    return Graph({"x": vector(8)}, (block("tower", "x", outer),), {"out": "tower:out"})


def test_every_name_of_torch_is_free() -> None:
    module, plain = started(chain(tuple(TORCHS))), started(chain(tuple(f"n{at}" for at in range(len(TORCHS)))))
    assert len(TORCHS) > 50
    assert list(dict(module.named_parameters())) == [f"{name}.{own}" for name in TORCHS for own in ("weight", "bias")]
    values = dict(zip(module.state_dict(), plain.state_dict().values(), strict=True))
    module.load_state_dict(values)
    x = torch.randn(3, 8)
    assert torch.equal(module(x)[0], plain(x)[0])
    assert module.train(False) is module
    assert not any(part.training for part in module.modules())


@pytest.mark.parametrize("name", WORDS)
def test_in_blocks_in_a_repeat_and_called_again(name: str) -> None:
    inner, x = (name, "plain", "half"), torch.randn(3, 8)
    module, plain = started(nested(name, inner)), started(nested("name", ("first", "plain", "second")))
    renamed = {
        key.replace("tower.name.", f"tower.{name}.").replace(".first.", f".{name}.").replace(".second.", ".half."): item
        for key, item in plain.state_dict().items()
    }
    module.load_state_dict(renamed)
    (wanted,) = plain(x)
    for call in (module, copy.deepcopy(module), copy.deepcopy(module).eval()):
        assert torch.equal(call(x)[0], wanted)
    assert torch.equal(fx.Interpreter(module).run(x)[0], wanted)
    weight = module.get_parameter(f"tower.{name}.1.{name}.weight")
    assert weight is dict(module.named_parameters())[f"tower.{name}.1.{name}.weight"]
    assert isinstance(module.get_submodule(f"tower.{name}.0"), Named)
    copied = copy.deepcopy(module)
    assert list(copied.state_dict()) == list(module.state_dict())
    assert copied.get_parameter(f"tower.{name}.1.{name}.weight") is not weight


def test_a_member_may_be_replaced_and_torchs_own_be_set() -> None:
    module = started(chain(("training", "forward", "last")))
    module.train(False)
    assert module.training is False
    module.forward = nn.Identity()
    assert isinstance(module.get_submodule("forward"), nn.Identity)
    assert list(dict(module.named_parameters())) == ["training.weight", "training.bias", "last.weight", "last.bias"]
    with pytest.raises(AttributeError, match="has no node `gone`"):
        module.get_submodule("gone")


def test_tools_that_look_members_up_by_attribute_get_them() -> None:
    module, x = started(nested("train", ("forward", "plain"))), torch.randn(3, 8)
    with torch.no_grad():
        exported = torch.export.export(for_tools(module), (x,), strict=False).module()
    assert torch.equal(exported(x)[0], module(x)[0])
    plain = started(chain(("first", "last")))
    assert for_tools(plain) is plain


def test_a_node_of_no_such_name_is_in_a_module_of_torchs_own() -> None:
    module = build(chain(("first", "last")))
    assert not isinstance(module, Named)


@pytest.mark.parametrize("name", ["unshard", "reshard", "set_requires_gradient_sync"])
def test_what_sharding_adds_to_a_module_is_not_called_for_a_node(name: str) -> None:
    assert isinstance(build(chain((name,)), is_sharded=True), Named)
    assert not isinstance(build(chain((name,))), Named)
    assert is_of_torch(f"{name}.0", is_sharded=True)
