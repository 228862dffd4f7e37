"""The page of models of transformers: what it has of a class is what happens."""

from __future__ import annotations

import random

import pytest
import transformers

from tests.pretrained_models import PAGE, WORKS, divide_apart, divisions_of, models, rows_of, walk_apart

ROWS, DIVIDED = rows_of(PAGE.read_text()), divisions_of(PAGE.read_text())
CELLS = sorted((axis, name) for axis, cells in DIVIDED.items() for name, cell in cells.items() if cell[0].isdigit())
QUICK = [
    ("tensor", "ApertusForCausalLM"),  # an activation with parameters, which the library's plan does not name
    ("tensor", "BartForCausalLM"),
    ("expert", "GptOssForCausalLM"),  # experts with biases
]


def test_the_page_has_every_class_of_the_installed_transformers() -> None:
    assert f"of transformers {transformers.__version__}, each as a node" in PAGE.read_text()
    assert sorted(each.name for each in models()) == sorted(ROWS)
    assert "not tried" not in ROWS.values()
    for cells in DIVIDED.values():
        assert cells.keys() == {each.name for each in models() if each.kind == "Language models"}
        assert not [name for name, cell in cells.items() if cell == "not tried" or "differs" in cell]


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", random.Random(0).sample(sorted(name for name in ROWS if ROWS[name] == WORKS), 12))
def test_a_model_does_what_the_page_says(name: str) -> None:
    (model,) = (each for each in models() if each.name == name)
    assert walk_apart(model) == ROWS[name]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("axis", "name"), [*QUICK, *(pytest.param(*each, marks=pytest.mark.long) for each in CELLS if each not in QUICK)]
)
def test_two_ranks_divide_what_the_page_says(axis: str, name: str) -> None:
    (model,) = (each for each in models() if each.name == name)
    assert divide_apart(model, axis) == DIVIDED[axis][name]
