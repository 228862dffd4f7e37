"""`--json`: every command that prints information has it, and prints one JSON value."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import pytest

from declarative_train.app.main import all_commands, command_module, main

ROOT = Path(__file__).parent.parent.parent
RECIPE = str(ROOT / "recipes" / "digits_mlp.yaml")
PAGE = (ROOT / "docs" / "editor.md").read_text("utf-8").partition("Every command that prints information")[2]
CALLS = {  # of commands that need no run
    ("data", "show", RECIPE): "sets",
    ("doctor",): "torch",
    ("explain", "P"): "ranks-do-not-divide",
    ("explain", "duplicate-key"): "Y003",
    ("find", "learning_rate"): "training.optimizer",
    ("lint", RECIPE, "--static"): "diagnostics",
    ("list",): "cross_entropy",
    ("list", "layers"): "self_attention",
    ("list", "training"): "training.epochs",
    ("list", "linear"): '{"key": "bias", "type": "true or false", "about": "',
    ("plan", RECIPE): "fingerprint",
    ("plan", RECIPE, "--for", "h100-sxm", "--scale", "1"): "samples_per_s",
    ("runs", str(ROOT / "schemas")): "[]",
    ("schema",): "$defs",
    ("show", RECIPE): "training.epochs",
    ("show", RECIPE, "--explicit"): "training.epochs",
    ("show", RECIPE, "--graph"): "logits",
}


def takes_json(name: str) -> bool:
    parser = argparse.ArgumentParser()
    command_module(name).add_arguments(parser)
    return "--json" in parser.format_help()


@pytest.mark.parametrize("name", all_commands())
def test_a_command_takes_json_or_the_page_says_what_else(name: str) -> None:
    with_, _, without = PAGE.partition("| command |")
    assert re.search(rf"`{name}( show)?`", with_ if takes_json(name) else without)


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
def test_json_is_one_value(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *(["--json"] if words[0] != "schema" else [])]) == 0
    found = json.loads(capsys.readouterr().out)
    assert CALLS[words] in json.dumps(found)


def test_of_a_recipe_with_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("training: {epoch: 3}\nseed: 1\n")
    assert main(["show", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["seed"]["value"] == 1
