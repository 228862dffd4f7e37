"""The bad example of every rule of graph and plan fires, and the good one does not."""

from __future__ import annotations

import textwrap
from importlib import import_module
from pathlib import Path

import pytest

from declarative_train import plan
from declarative_train.graph.checks import RULES as GRAPH_RULES
from declarative_train.plan.checks import RULES as PLAN_RULES
from declarative_train.recipe import load

PAGES = [
    *((code, f"declarative_train.graph.checks.{module}") for code, module in GRAPH_RULES.items()),
    *((code, f"declarative_train.plan.checks.{module}") for code, module in PLAN_RULES.items()),
]
NEEDS_A_PLUGIN = {"G005"}


def example(page: str, which: str) -> str:
    part = page.split(f"\n{which}:\n")[1].split("\nGood:\n")[0]
    return textwrap.dedent(part)


def codes(text: str, folder: Path) -> list[str]:
    base = Path(__file__).parents[2] / "recipes" / "digits_mlp_ddp2.yaml"
    (folder / "base.yaml").write_text(base.read_text().replace("data/digits", f"{base.parent}/data/digits"))
    whole = text if text.startswith("# whole file") else f"extends: base.yaml\n{text}"
    (folder / "page.yaml").write_text(whole)
    loaded = load(str(folder / "page.yaml"))
    found = list(loaded.diagnostics)
    if loaded.recipe is not None:
        found += plan.compile(loaded.recipe)[1]
    return [item.code for item in found]


def test_the_table_is_sorted_and_complete() -> None:
    for room, rules in (("graph", GRAPH_RULES), ("plan", PLAN_RULES)):
        folder = Path(import_module(f"declarative_train.{room}.checks").__file__ or "").parent
        assert list(rules) == sorted(rules)
        assert sorted(rules.values()) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize(("code", "module"), PAGES)
def test_the_page_has_its_form(code: str, module: str) -> None:
    page = import_module(module).__doc__
    assert page is not None
    name = page.split(" ")[0]
    assert page.startswith(f"{name} ({code})\n\nFinds: ")
    assert all(part in page for part in ("\nWhy:   ", "\nBad:\n", "\nGood:\n"))


@pytest.mark.parametrize(("code", "module"), [page for page in PAGES if page[0] not in NEEDS_A_PLUGIN])
def test_the_examples(code: str, module: str, tmp_path: Path) -> None:
    page = import_module(module).__doc__
    assert page is not None
    assert code in codes(example(page, "Bad"), tmp_path)
    good = page.split("\nGood:\n")[1]
    assert not [found for found in codes(textwrap.dedent(good), tmp_path) if found == code]
