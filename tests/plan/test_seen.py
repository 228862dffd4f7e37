"""What depends on fields alone is computed on the real rows when a recipe is compiled."""

from __future__ import annotations

import pytest

from tests.plan.conftest import Compile

TABLE = "e: {{type: embedding, {rows}embedding_dim: 4, input: n}}, logits: {{type: linear, out_features: 10, input: e}}"


def graph(n: str, rows: str = "num_embeddings: 10, ") -> str:
    return f"model: {{graph: {{hidden: null, act: null, n: {n}, {TABLE.format(rows=rows)}}}}}"


@pytest.mark.parametrize(
    ("fragment", "code", "words"),
    [
        (graph("y + 5"), "G001", "`x` holds numbers from 5 to 14"),
        (graph("y - 1"), "G001", "numbers from -1 to 8"),
        (graph('"int(abs(x[:, 0]) * 100)"'), "G001", "`num_embeddings: 10` is too small"),
        (graph('"int(abs(x[:, 0]) * 100)"', ""), "G001", "`embedding` needs `num_embeddings`"),
        ("model: {graph: {t: y - 1}}\nobjective: {loss: {target: t}}", "O101", "classes go from -1 to 8"),
        ("model: {graph: {t: y + 1}}\nobjective: {loss: {target: t}}", "O101", "classes go from 1 to 10"),
        (
            'model: {graph: {hot: "float(one_hot(y, 5))"}}\nobjective: {loss: {target: hot}}',
            "G004",
            "its values are 0 to 9",
        ),
        ("model: {graph: {m: y > 20}}\nobjective: {loss: {mask: m}}", "G014", "all items of the 900"),
        ("model: {graph: {hidden: {input: bad}, bad: log(x)}}", "G011", "`x` is ["),
    ],
)
def test_what_occurs_is_held_against_what_is_taken(fragment: str, code: str, words: str, compiled: Compile) -> None:
    plan, found = compiled(fragment)
    assert plan is None
    (said,) = [item for item in found if item.is_error]
    assert said.code == code
    assert words in said.message


def test_a_table_without_a_size_has_one_where_numbers_below_0_do_not_occur(compiled: Compile) -> None:
    plan, found = compiled(graph('"maximum(y, 1) - y // 8 - 1 + y // 8"', ""))
    assert plan is not None, found
    assert {item.name: item.shape for item in plan.parameters}["e.weight"] == (10, 4)


def test_an_interval_wider_than_the_truth_is_no_mistake(compiled: Compile) -> None:
    plan, found = compiled(graph("y - y // 2", "num_embeddings: 6, "))
    assert plan is not None
    assert not [item for item in found if item.is_error]
