"""A layer and the function of the same name are one operation: their words, defaults, values, ranges and refusals."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, TypeVar

import pytest
import torch
from pydantic_core import PydanticUndefined

from declarative_train.components.expressions.dtypes import fill_num_classes
from declarative_train.components.expressions.functions import FUNCTIONS, REQUIRED
from declarative_train.components.expressions.grammar import Expression, parse
from declarative_train.components.expressions.lower import infer
from declarative_train.components.expressions.tree import ExpressionError
from declarative_train.components.layers import LAYERS
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.probe import BatchMovedError, RefusedError, probe_expression, probe_layer
from declarative_train.graph.read import order_ports

T = TypeVar("T")
TWINS = sorted(LAYERS.keys() & FUNCTIONS.keys())
OF_TENSORS = ("tensor", "tensors", "value")
TEXTS = {("gelu", "approximate")}  # expressions hold no texts

ORDERS = ((0, 1), (0, 2, 1), (2, 1), (0, -1, -2), (0, -3, 1), (1, 0, 2), (0, 3, 1, 2), (0, 1, 1))
SHAPES = (("B", 8), ("B", -1), ("B", 2, -1), (2, -1), ("B",), ("B", 3, 5), ("B", -1, -1), (2, "B"), ("B", 0))
DIMS = (-4, -3, -2, -1, 0, 1, 2, 3)
FIELDS: dict[str, list[dict[str, Any]]] = {
    "concat": [{}, *({"dim": dim} for dim in DIMS)],
    "elu": [{}, {"alpha": 0.5}],
    "flatten": [{}, *({"start_dim": a, "end_dim": b} for a, b in product((0, 1, 2, -2, -1), (1, 2, -1)))],
    "leaky_relu": [{}, {"negative_slope": 0.3}],
    "log_softmax": [{}, *({"dim": dim} for dim in DIMS)],
    "one_hot": [{}, {"num_classes": 4}, {"num_classes": 9}],
    "permute": [{"dims": dims} for dims in ORDERS],
    "reshape": [{"shape": shape} for shape in SHAPES],
    "softmax": [{}, *({"dim": dim} for dim in DIMS)],
    "softplus": [{}, {"beta": 2.0}],
    "squeeze": [{}, *({"dim": dim} for dim in DIMS)],
    "stack": [{}, *({"dim": dim} for dim in DIMS)],
    "unsqueeze": [{}, *({"dim": dim} for dim in DIMS)],
}  # fmt: skip
ALONE = [
    TensorSpec((), "float32"), TensorSpec((8,), "float32"), TensorSpec((6, 8)), TensorSpec((1, 8)), TensorSpec((6, 1)),
    TensorSpec((2, 3, 8), "float16"), TensorSpec((8,), "float64"), TensorSpec((8,), "float32", bounds=((0, 3),)),
    TensorSpec((8,), "int64", 5), TensorSpec((6, 2), "int32", 5), TensorSpec((2,), "int64", bounds=((2, 3), (0, 7))),
    TensorSpec((8,), "uint8"), TensorSpec((8,), "int64"), TensorSpec((6, 8), "bool"),
]  # fmt: skip
PAIRS = [
    (TensorSpec((6, 8)), TensorSpec((6, 8))), (TensorSpec((6, 8)), TensorSpec((6, 3))),
    (TensorSpec((6, 8)), TensorSpec((2, 8))), (TensorSpec((8,)), TensorSpec((6, 8))), (TensorSpec(()), TensorSpec(())),
    (TensorSpec((8,), "int64", 5), TensorSpec((8,), "int64", 9)), (TensorSpec((8,), "int64", 5), TensorSpec((8,))),
    (TensorSpec((8,), "bool"), TensorSpec((8,))), (TensorSpec((8,)), TensorSpec((8,), "float64")),
]  # fmt: skip


def cases(name: str) -> list[tuple[dict[str, Any], dict[str, TensorSpec]]]:
    if LAYERS[name].ports[0].variadic:
        inputs = [{f"x.{i}": spec for i, spec in enumerate(pair)} for pair in PAIRS]
    else:
        inputs = [{"x": spec} for spec in ALONE]
    return [(fields, specs) for fields in FIELDS.get(name, [{}]) for specs in inputs]


def text(name: str, fields: Mapping[str, Any], ports: list[str]) -> str:
    def shown(value: Any) -> str:
        return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)

    return f"{name}({', '.join([*ports, *(f'{key}={shown(value)}' for key, value in fields.items())])})"


def names_of(ports: Mapping[str, T]) -> dict[str, T]:
    return {port.replace(".", "_"): spec for port, spec in ports.items()}


def by_layer(name: str, fields: Mapping[str, Any], specs: dict[str, TensorSpec]) -> tuple[TensorSpec, Any] | None:
    layer = LAYERS[name](**fields)
    said = layer.check(specs)
    if said is not None:
        return None
    try:
        return probe_layer(layer, specs, specs).outputs[0], layer.build(specs)
    except (RefusedError, BatchMovedError):
        return None


def by_function(typed: str, specs: dict[str, TensorSpec]) -> tuple[TensorSpec, Expression] | None:
    try:
        expression = fill_num_classes(parse(typed), specs)
        return probe_expression(expression, specs), expression
    except (ExpressionError, BatchMovedError):
        return None


def tensors_of(specs: Mapping[str, TensorSpec]) -> dict[str, torch.Tensor]:
    found = {}
    for number, (name, spec) in enumerate(specs.items()):
        generator = torch.Generator().manual_seed(number)
        shape = (4, *spec.shape)
        low, high = spec.interval or (0, 2)
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        whole = torch.randint(int(low), int(high) + 1, shape, generator=generator)
        found[name] = (drawn if spec.is_floating else whole).to(getattr(torch, spec.dtype))
    return found


@pytest.mark.parametrize("name", TWINS)
def test_twins_have_the_same_words_and_defaults(name: str) -> None:
    fields = {key: field.default for key, field in LAYERS[name].model_fields.items() if (name, key) not in TEXTS}
    parameters = {each.name: each.default for each in FUNCTIONS[name].parameters if each.kind not in OF_TENSORS}
    assert {
        key: REQUIRED if value is PydanticUndefined else value for key, value in fields.items() if key != "type"
    } == parameters
    assert LAYERS[name].operation == name


@pytest.mark.parametrize("name", TWINS)
def test_twins_give_and_refuse_the_same(name: str) -> None:
    given = 0
    for fields, specs in cases(name):
        typed = text(name, fields, list(names_of(specs)))
        layer, function = by_layer(name, fields, specs), by_function(typed, names_of(specs))
        assert (layer is None) == (function is None), (typed, specs)
        if layer is None or function is None:
            continue
        assert layer[0] == function[0], (typed, specs)
        given += 1
        tensors = tensors_of(specs)
        one = layer[1](*[tensors[str(port)] for port in order_ports(LAYERS[name](**fields), specs)])
        other = infer(function[1], names_of(tensors))
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (typed, specs)
    assert given


def test_the_twins_are_known() -> None:
    assert {"reshape", "permute", "flatten", "softmax", "concat", "stack", "squeeze", "one_hot", "relu"} <= set(TWINS)
    assert FIELDS.keys() <= set(TWINS)
