"""The pages of the rules on blocks, wires and expressions: the bad example fires, the good one does not."""

from __future__ import annotations

import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from declarative_train.recipe import load
from declarative_train.recipe.checks import RULES

PAGES = [(code, module) for code, module in RULES.items() if code[0] in "BEW"]
BASE = Path(__file__).parents[3] / "recipes" / "digits_mlp_ddp2.yaml"


def codes(text: str, folder: Path) -> list[str]:
    (folder / "base.yaml").write_text(BASE.read_text())
    whole = text if text.startswith("# whole file") else f"extends: base.yaml\n{text}"
    (folder / "page.yaml").write_text(whole)
    return [found.code for found in load(str(folder / "page.yaml")).diagnostics]


@pytest.mark.parametrize(("code", "module"), PAGES)
def test_the_examples(code: str, module: str, tmp_path: Path) -> None:
    page = import_module(f"declarative_train.recipe.checks.{module}").__doc__
    assert page is not None
    assert page.startswith(f"{module.replace('_', '-')} ({code})\n\nFinds: ")
    bad, good = page.split("\nBad:\n")[1].split("\nGood:\n")
    assert code in codes(textwrap.dedent(bad), tmp_path)
    assert code not in codes(textwrap.dedent(good), tmp_path)
