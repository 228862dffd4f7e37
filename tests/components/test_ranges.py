"""Intervals of expressions: never narrower than what really comes out, and as narrow as they should be."""

from __future__ import annotations

import pytest
import torch

from declarative_train.components.expressions.dtypes import result_spec
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.lower import infer
from declarative_train.components.layers import LAYERS
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.probe import probe_layer
from tests.hunt import NUMBERS, VECTORS

EDGES = {
    "n": TensorSpec((3,), "int64", 10),
    "m": TensorSpec((3,), "int64").between(((-2, 4),)),
    "b": TensorSpec((3,), "bool"),
    "k": TensorSpec((3,), "int64").between(((0, 1), (5, 9), (0, 99))),
    "u": TensorSpec((3,), "uint8", 256),
    "f": TensorSpec((3,), "float32").between(((-1.5, 2.5),)),
}
MORE = (
    "n + 250 * u",
    "u + u",
    "u * 2",
    "u - 1",
    "~b",
    "b & b",
    "float(b) - f",
    "int(f * 3)",
    "f ** 2",
    "m ** 2",
    "m ** 3",
    "n // m",
    "m // 3",
    "n / 4",
    "m % 3",
    "n % m",
    "abs(m)",
    "clamp(m, 0, 2)",
    "masked_fill(n, b, -100)",
    "sum(m, dim=-1)",
    "cumsum(m, dim=-1)",
    "mean(f, dim=-1)",
    "argmax(f, dim=-1)",
    "topk(f, 2)",
    "topk(n, 1, dim=-1)",
    "topk_indices(f, 2)",
    "k[:, 1]",
    "k[:, 1:]",
    "k[:, ..., 0]",
    "concat(k, n)",
    "stack(n, m, dim=-1)",
    "k * 2 - n",
    "where(b, k, n)",
    "k[:, 1:2]",
    "one_hot(n, 12)",
    "-k",
    "round(f)",
    "ceil(f * 2)",
    "exp(f)",
    "int(sigmoid(f) * 4)",
    "square(f)",
    "maximum(k, m)",
    "gather(k, clamp(n, 0, 2), dim=1)",
    "k + [0, 2, 11]",
    "[3, -2, 1] * k",
    "k[:, 1:2] + [0, 2, 11]",
    "sum(k[:, 1:2] + [0, 2, 11], dim=-1)",
    "unsqueeze(k, 1)",
    "unsqueeze(k, -1)",
    "k - unsqueeze(k, 1)[:, 0]",
)


def drawn(name: str, spec: TensorSpec) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(name) + ord(name[0]))
    columns = spec.intervals or ((0, 1),)
    wide = columns if len(columns) == 3 else columns * 3
    parts = []
    for low, high in wide:
        part = torch.rand(400, generator=generator) * (high - low) + low
        part[:2] = torch.tensor([low, high])
        parts.append(part if spec.is_floating else part.round())
    return torch.stack(parts, dim=-1).to(getattr(torch, spec.dtype))


@pytest.mark.parametrize("text", MORE)
def test_an_interval_holds_everything_that_comes_out(text: str) -> None:
    expression = parse(text)
    used = {name.text: drawn(name.text, EDGES[name.text]) for name in expression.names}
    if text in ("n // m", "n % m"):
        used["m"] = torch.where(used["m"] == 0, 1, used["m"])
    found = infer(expression, used)
    spec = result_spec(expression, EDGES, tuple(found.shape[1:]))
    assert f"torch.{spec.dtype}" == str(found.dtype)
    columns = spec.intervals
    if not columns:
        return
    rows = found.reshape(-1, found.shape[-1]) if len(columns) > 1 else found.reshape(-1, 1)
    for place, (low, high) in enumerate(columns):
        assert low <= float(rows[:, place].min()), text
        assert float(rows[:, place].max()) <= high, text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("n + 5", ((5, 14),)),
        ("n - 1", ((-1, 8),)),
        ("n * 2", ((0, 18),)),
        ("n // 2", ((0, 4),)),
        ("n % 3", ((0, 2),)),
        ("-n", ((-9, 0),)),
        ("where(b, n, 20)", ((0, 20),)),
        ("clamp(m, 0, 2)", ((0, 2),)),
        ("one_hot(n, 12)", ((0, 1),)),
        ("abs(m)", ((0, 4),)),
        ("int(n > 2)", ()),
        ("k[:, 1]", ((5, 9),)),
        ("k + 1", ((1, 2), (6, 10), (1, 100))),
        ("k + [0, 2, 11]", ((0, 1), (7, 11), (11, 110))),
        ("k - [0, 5, 0]", ((0, 1), (0, 4), (0, 99))),
        ("unsqueeze(k, 1)", ((0, 1), (5, 9), (0, 99))),
        ("u + 1", ()),  # 255 + 1 is 0 in eight bits
        ("int(clamp(f, 0, 3))", ((0, 2),)),
    ],
)
def test_what_is_known(text: str, wanted: tuple[tuple[int, int], ...]) -> None:
    shape = {"k[:, 1]": (), "unsqueeze(k, 1)": (1, 3)}.get(text, (3,))
    if text == "int(n > 2)":
        wanted = ((0, 1),)
    assert result_spec(parse(text), EDGES, shape).intervals == wanted


def test_a_vector_beside_an_image_lies_along_its_channels() -> None:
    edges = {"pixels": TensorSpec((3, 4, 3), "int64", 10)}
    spec = result_spec(parse("pixels + [0, 100, 200]"), edges, (3, 4, 3))
    assert spec.intervals == ((0, 209),)


@pytest.mark.parametrize(
    ("layer", "wanted"),
    [
        ({"type": "add"}, ((0, 10), (5, 18), (0, 108))),
        ({"type": "multiply"}, ((0, 9), (0, 81), (0, 891))),
        ({"type": "concat"}, ((0, 1), (5, 9), (0, 99), (0, 9), (0, 9), (0, 9))),
        ({"type": "stack", "dim": -1}, ((0, 99), (0, 9))),
        ({"type": "stack", "dim": 1}, ((0, 99),)),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else "",
)
def test_a_layer_gives_the_intervals_of_its_operation(layer: dict[str, object], wanted: tuple[object, ...]) -> None:
    inputs = {"x.0": EDGES["k"], "x.1": EDGES["n"]}
    (spec,) = probe_layer(LAYERS[str(layer["type"])].model_validate(layer), inputs, inputs).outputs
    assert spec.intervals == wanted


def test_a_table_has_rows_for_all_that_occurs_above_0() -> None:
    x = TensorSpec((), "int64").between(((-1, 8),))
    module = LAYERS["embedding"].model_validate({"type": "embedding", "embedding_dim": 4}).build({"x": x})
    assert [tuple(item.shape) for item in module.parameters()] == [(9, 4)]


def test_the_words_of_the_hunt_are_expressions() -> None:
    for text in (*VECTORS, *NUMBERS):
        parse(text)


def test_tables_have_the_sizes_of_their_columns() -> None:
    from declarative_train.components.layers.embedding import Embeddings

    x = TensorSpec((3,), "int64").between(((0, 1), (0, 9), (0, 99)))
    module = Embeddings(embedding_dim=4).build({"x": x})
    assert [tuple(item.shape) for item in module.parameters()] == [(2, 4), (10, 4), (100, 4)]
    shape_error = Embeddings(embedding_dim=4, num_embeddings=(100, 5, 100)).check({"x": x})
    assert shape_error is not None
    assert "column 1 a table of 5 rows, and its values are 0 to 9" in shape_error.message
