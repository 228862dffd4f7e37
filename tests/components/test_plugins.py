"""Plugins: a file's layers by their signatures, without running it; and what is said of a file that cannot be one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from declarative_train.components.component import Port
from declarative_train.components.plugin_file import PluginProblem
from declarative_train.components.plugin_layer import PluginLayer
from declarative_train.components.plugins import plugin_layers, read_plugin
from declarative_train.core.tensor_spec import TensorSpec

GATED = '''
"""A plugin."""
from __future__ import annotations
import torch
from torch import nn, Tensor
from typing import Annotated, Literal, NamedTuple, Optional

DEFAULT = 3
raise_on_import = None


class GatedUnit(nn.Module):
    """A gate."""

    def __init__(self, in_features: int, width: int, rate: float = 0.5, kind: Literal["a", "b"] = "a",
                 sizes: list[int] = [1, 2], act=nn.ReLU(), times: Optional[int] = None, *, extra: bool = False):
        super().__init__()
        self.linear = nn.Linear(in_features, width)
        self.rate, self.kind, self.sizes, self.times, self.extra = rate, kind, sizes, times, extra
        self.act = act
        self.register_buffer("scale", torch.full((width,), rate))

    def forward(
        self, x: Tensor, mask: Tensor | None = None
    ) -> tuple[Annotated[Tensor, "mean"], Annotated[Tensor, "gate"]]:
        y = self.linear(x)
        return self.act(y) * self.scale, torch.sigmoid(y)


class _Helper(nn.Module):
    pass


class Base(nn.Module):
    type = "base_layer"

    def __init__(self, width=4):
        super().__init__()
        self.width = width

    def forward(self, x, *more):
        return x


class HTTPMixer2d(Base):
    def forward(self, x, y) -> Pair:
        return Pair(x, y)


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class NotALayer:
    def __init__(self, when): ...
'''


def layers(text: str, may_import: bool = False) -> dict[str, type[PluginLayer]]:
    found, problems = read_plugin("plugin.py", text, may_import=may_import)
    assert not problems
    return {name: each.layer for name, each in found.items()}


def problems(text: str) -> tuple[PluginProblem, ...]:
    return read_plugin("plugin.py", text, may_import=False)[1]


def test_layers_are_found_by_name_without_running_the_file() -> None:
    found = layers("raise RuntimeError('it ran')\n" + GATED)
    assert list(found) == ["gated_unit", "base_layer", "http_mixer2d"]
    assert not any(layer.may_import for layer in found.values())


def test_signatures_give_fields_ports_and_outputs() -> None:
    gated = layers(GATED)["gated_unit"]
    assert gated.__doc__ == "A gate."
    assert gated.ports == (Port("x"), Port("mask", optional=True))
    assert gated.outputs == ("mean", "gate")
    made = gated(width=3, times=2)  # type: ignore[call-arg]
    assert made.model_dump() == {
        "type": "gated_unit",
        "in_features": None,
        "width": 3,
        "rate": 0.5,
        "kind": "a",
        "sizes": (1, 2),
        "act": None,
        "times": 2,
        "extra": False,
    }
    base, mixer = layers(GATED)["base_layer"], layers(GATED)["http_mixer2d"]
    assert base.ports == (Port("x"), Port("more", variadic=True))
    assert base.outputs == ("output",)
    assert mixer.outputs == ("left", "right")
    assert mixer().model_dump() == {"type": "http_mixer2d", "width": 4}  # __init__ of its base in the file


@pytest.mark.parametrize(
    ("fields", "at", "kind"),
    [
        ({}, ("width",), "missing"),
        ({"width": "3"}, ("width",), "int_type"),
        ({"width": 3, "rate": "x"}, ("rate",), "float_type"),
        ({"width": 3, "kind": "c"}, ("kind",), "literal_error"),
        ({"width": 3, "sizes": (1, "a")}, ("sizes", 1), "int_type"),
        ({"width": 3, "extra": 1}, ("extra",), "bool_type"),
        ({"width": 3, "widht": 1}, ("widht",), "extra_forbidden"),
    ],
)
def test_fields_are_checked(fields: dict[str, Any], at: tuple[str, ...], kind: str) -> None:
    with pytest.raises(ValidationError) as found:
        layers(GATED)["gated_unit"].model_validate(fields)
    assert [(error["loc"], error["type"]) for error in found.value.errors()] == [(at, kind)]


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        ("int | None", [1, None], ["a"]),
        ("'int'", [1], ["a"]),
        ("tuple[int, float]", [(1, 2.0)], [(1,), (1, "a")]),
        ("tuple[int, ...]", [(), (1, 2)], [("a",)]),
        ("Union[int, str]", [1, "a"], [1.5, True]),
        ("dict[str, int]", [{"a": 1}], [{"a": "b"}, 3]),
        ("list", [(1, "a")], [3]),
        ("Annotated[int, 'doc']", [1], ["a"]),
        ("Callable[[int], int]", ["anything", 3], []),
        ("int | SomethingElse", ["anything", 3], []),
    ],
)
def test_annotations(annotation: str, good: list[object], bad: list[object]) -> None:
    text = f"""
from torch import nn
from typing import Annotated, Callable, Union
class One(nn.Module):
    def __init__(self, value: {annotation}): super().__init__()
    def forward(self, x): return x
"""
    layer = layers(text)["one"]
    for value in good:
        layer.model_validate({"value": value})
    for value in bad:
        with pytest.raises(ValidationError):
            layer.model_validate({"value": value})


FORWARD = "    def forward(self, x): ...\n"


def one(body: str) -> str:
    return f"from torch import nn\nclass One(nn.Module):\n{body}"


@pytest.mark.parametrize(
    ("text", "kind", "caret", "words"),
    [
        ("def broken(:\n  pass", "syntax", ":", "invalid syntax"),
        (one("    def __init__(self, when): ...\n" + FORWARD), "reserved", "when", "an argument"),
        (one("    def __init__(self, ports): ...\n" + FORWARD), "reserved", "ports", "an argument"),
        (one("    def __init__(self, N): ...\n" + FORWARD), "name", "N", "cannot be a field"),
        (one("    def forward(self, inputs): ...\n"), "reserved", "inputs", "forward"),
        (one("    def forward(self, X): ...\n"), "name", "X", "cannot be a port"),
        (one("    def forward(self, x, scale=1.0): ...\n"), "signature", "scale", "has a default"),
        (one("    def forward(self, x, *, y): ...\n"), "signature", "y", "keyword-only"),
        (one("    def __init__(self): ...\n"), "signature", "One", "no `forward`"),
        (one("    type = 'Two'\n" + FORWARD), "name", "type = 'Two'", "lower case"),
        (one("    def forward(self, x) -> tuple[int, ...]: ...\n"), "signature", "tuple[int, ...]", "unknown length"),
        ("import torch\nclass A(torch.nn.Linear):\n" + FORWARD, "signature", "A", "no `__init__`"),
        (one(FORWARD) + "class Two(nn.Module):\n    type = 'one'\n" + FORWARD, "name", "Two", "two classes"),
    ],
)
def test_what_cannot_be_a_plugin(text: str, kind: str, caret: str | None, words: str) -> None:
    (problem,) = problems(text)
    assert problem.kind == kind
    assert words in problem.message
    if caret is not None:
        assert text.splitlines()[problem.line - 1][problem.column - 1 : problem.end_column - 1] == caret


def test_a_file_without_layers_has_none() -> None:
    assert read_plugin("plugin.py", "x = 3\n", may_import=False) == ({}, ())


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my_layers.py"
    path.write_text(GATED)
    return str(path)


def test_build_runs_the_file_and_takes_sizes_from_the_edge(file: str) -> None:
    import torch

    gated = plugin_layers(file)["gated_unit"]
    assert gated.may_import
    layer = gated.model_validate_json('{"type": "gated_unit", "width": 3, "act": null, "sizes": [5]}')
    module = layer.build({"x": TensorSpec((7,))})
    assert module.linear.in_features == 7  # type: ignore[union-attr]
    assert module.sizes == [5]
    mean, gate = module(torch.ones(2, 7), None)
    assert mean.shape == gate.shape == (2, 3)
    assert [name for name in sys.modules if name.startswith("dtrain_plugin_my_layers")]


def test_the_code_starts_what_it_makes_from_a_seed_of_its_own(file: str) -> None:
    import torch

    layer = plugin_layers(file)["gated_unit"](width=3)  # type: ignore[call-arg]
    inputs = {"x": TensorSpec((7,))}
    before = torch.get_rng_state()
    with torch.device("meta"):
        first, second, other = (layer.start(inputs, seed).linear.weight for seed in (1, 1, 2))  # type: ignore[union-attr]
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.abs().max() <= 7**-0.5
    assert torch.equal(torch.get_rng_state(), before)


def test_what_was_started_on_meta_is_written_after_it_has_memory(file: str) -> None:
    """Parameters, buffers and what shares memory, into a model that was never whole before."""
    import torch

    from declarative_train.graph.graph import Graph
    from declarative_train.graph.initialise import build_plugin_layer, initialise

    layer = plugin_layers(file)["gated_unit"](width=3, rate=0.25)  # type: ignore[call-arg]
    with torch.device("meta"):
        module = build_plugin_layer(layer, {"x": TensorSpec((7,))}, 1, "gate")
    assert {item.device.type for item in (*module.parameters(), *module.buffers())} == {"meta"}
    module.to_empty(device="cpu")
    initialise(module, Graph({}, (), {}), (), 1)
    wanted = build_plugin_layer(layer, {"x": TensorSpec((7,))}, 1, "gate").state_dict()
    assert torch.equal(wanted["scale"], torch.full((3,), 0.25))
    assert all(torch.equal(item, wanted[name]) for name, item in module.state_dict().items())


def test_a_file_that_changed_since_is_refused(file: str) -> None:
    Path(file).write_text(one("    def __init__(self): ...\n"))
    plugin_layers.cache_clear()
    with pytest.raises(ValueError, match="no `forward`"):
        plugin_layers(file)
