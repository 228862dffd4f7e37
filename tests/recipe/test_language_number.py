"""The number of the recipe language: a recipe without it is of language 1, whatever numbers are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from declarative_train.recipe.load import Loaded, load

Laid = Callable[..., Loaded]
RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.mark.parametrize(("written", "number"), [("seed: 1\n", 1), ("language: 1\n", 1), ("language: 2\n", 2)])
def test_a_recipe_without_a_number_keeps_its_meaning(
    laid: Laid, monkeypatch: pytest.MonkeyPatch, written: str, number: int
) -> None:
    monkeypatch.setattr(sys.modules[load.__module__], "LANGUAGES", (1, 2))
    recipe = laid(written).recipe
    assert recipe is not None
    assert recipe.language == number


@pytest.mark.parametrize(
    ("written", "hint"), [("language: 2\n", "install a newer dtrain"), ("language: 0\n", "write `language: 1`")]
)
def test_another_number_is_the_only_thing_reported(laid: Laid, written: str, hint: str) -> None:
    [found] = laid(f"{written}training: {{no_such_key: 1}}\n").diagnostics
    assert (found.code, found.help) == ("S004", hint)


def test_shipped_recipes_carry_the_number() -> None:
    for path in sorted(RECIPES.rglob("*.yaml")):
        document = load(str(path)).document
        assert document is not None
        assert document.find(("language",)) is not None or document.find(("fragment",)) is not None, path
