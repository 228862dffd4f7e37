"""The pages of the static rules: the bad example fires, the good one does not."""

from __future__ import annotations

import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from declarative_train.recipe import load
from declarative_train.recipe.checks import RULES

ROOT = Path(__file__).parents[2]
LATER = {"U002"}  # told where all parameters are known, by the graph room
PAGES = [(code, module) for code, module in RULES.items() if code[0] in "HKOPRSUX" and code not in LATER]
PLUGINS = {
    "broken.py": "def broken(:\n",
    "empty.py": "x = 3\n",
    "raises.py": "from torch import nn\nclass A(nn.Module):\n    def forward(self, x): return x\nraise OSError('no')\n",
    "vague.py": "from torch import nn\nclass A(nn.Module):\n    def forward(self, x, scale=1.0): return x\n",
}


def codes(text: str, folder: Path) -> list[str]:
    (folder / "base.yaml").write_text((ROOT / "recipes" / "digits_mlp_ddp2.yaml").read_text())
    for name, source in PLUGINS.items():
        (folder / name).write_text(source)
    whole = text if text.startswith("# whole file") else f"extends: base.yaml\n{text}"
    (folder / "page.yaml").write_text(whole)
    return [found.code for found in load(str(folder / "page.yaml"), plugins=True).diagnostics]


@pytest.mark.parametrize(("code", "module"), PAGES)
def test_the_examples(code: str, module: str, tmp_path: Path) -> None:
    page = import_module(f"declarative_train.recipe.checks.{module}").__doc__
    assert page is not None
    assert page.startswith(f"{module.replace('_', '-')} ({code})\n\nFinds: ")
    assert "\nWhy:   " in page
    bad, good = page.split("\nBad:\n")[1].split("\nGood:\n")
    assert code in codes(textwrap.dedent(bad), tmp_path)
    assert code not in codes(textwrap.dedent(good), tmp_path)


def test_every_rule_has_its_file_and_every_file_its_rule() -> None:
    files = {path.stem for path in (ROOT / "declarative_train" / "recipe" / "checks").glob("*.py")} - {"__init__"}
    assert sorted(RULES.values()) == sorted(files)
    assert list(RULES) == sorted(RULES)
