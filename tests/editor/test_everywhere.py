"""Hover and names at every few characters of recipes, right and wrong: nothing fails, wherever the cursor stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train.app.commands.lint import looks_like_recipe
from declarative_train.core.diagnostics.lines import Lines
from declarative_train.tools.language_server.analysis import analyse
from declarative_train.tools.language_server.completion import complete
from declarative_train.tools.language_server.hover import hover

ROOT = Path(__file__).parents[2]
RECIPES = ["compare_modes.yaml", "digits_vae.yaml", "gpt_nano_fsdp2.yaml"]


@pytest.mark.parametrize("name", RECIPES)
def test_every_place_of_a_good_recipe(name: str) -> None:
    path = ROOT / "recipes" / name
    text = path.read_text("utf-8")
    analysis = analyse(str(path), text, full=True)
    assert analysis.plan is not None
    lines = Lines(str(path), text)
    shown = [hover(analysis, *lines.place(offset)) for offset in range(0, len(text), 5)]
    offered = [complete(str(path), text, offset, analysis) for offset in range(0, len(text), 4)]
    assert sum(each is not None for each in shown) > 50
    assert sum(map(bool, offered)) > 5


@pytest.mark.parametrize("cut", [7, 40, 400, 700, 1000])
def test_a_text_that_breaks_off(cut: int) -> None:
    path = ROOT / "recipes" / "digits_vae.yaml"
    text = path.read_text("utf-8")[:cut]
    analysis = analyse(str(path), text, full=True)
    lines = Lines(str(path), text)
    for offset in range(0, len(text) + 1, 9):
        hover(analysis, *lines.place(offset))
        complete(str(path), text, offset, None)


def test_which_files_are_recipes() -> None:
    assert all(looks_like_recipe(path.read_text("utf-8")) for path in (ROOT / "recipes").rglob("*.yaml"))
    assert looks_like_recipe("extends: base.yaml\ntraining: {epochs: 3}\n")
    assert not looks_like_recipe("name: ci\non: push\njobs: {}\n")
    assert not looks_like_recipe("apiVersion: v1\nkind: ConfigMap\ndata: {a: b}\n")
    assert not looks_like_recipe("# yaml-language-server: $schema=https://json.schemastore.org/x.json\ndata: {}\n")
