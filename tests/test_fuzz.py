"""Mutated recipes: lint never fails, never takes long, and says something or gives a recipe that loads.

python -m tests.test_fuzz 20000 [FIRST]    any number of mutations, from seed FIRST on
"""

from __future__ import annotations

import sys
import time
import traceback
import warnings
from pathlib import Path

import pytest

from declarative_train import plan, recipe
from declarative_train.diagnostics.render import render
from tests.generated_recipes import generated
from tests.linted import CASES, dtrain
from tests.mutations import mutated

SHIPPED = Path(__file__).parents[1] / "recipes"
SEEDS = [*sorted(SHIPPED.rglob("*.yaml")), *sorted((CASES / "ok").glob("*.yaml")), *sorted(CASES.glob("*.yaml"))]
SLOWEST_S = 2.0
COMPILED_EVERY = 25  # of the recipes that load, so many are compiled too


def check(path: Path, text: bytes, compiled: bool) -> str:
    """What became of it: `refused`, `warned`, `loaded`, `planned`. Raises whatever lint raises."""
    begin = time.perf_counter()
    content = text.decode("utf-8", "surrogateescape")
    loaded = recipe.load(str(path), text=content)
    texts = {} if loaded.document is None else dict(loaded.document.texts())
    render(loaded.diagnostics, texts, format="full")
    assert time.perf_counter() - begin < SLOWEST_S, "lint took too long"
    errors = [item for item in loaded.diagnostics if item.is_error]
    assert errors or loaded.recipe is not None or is_fragment(content), "neither an error nor a recipe"
    if loaded.recipe is None:
        return "refused"
    if compiled:
        planned, found = plan.compile(loaded.recipe, offline=True)
        render(found, texts, format="full")
        assert planned is not None or found, "neither a diagnostic nor a plan"
        return "planned" if planned is not None else "refused"
    return "warned" if loaded.diagnostics else "loaded"


def is_fragment(content: str) -> bool:
    return "fragment" in content


def run(first: int, count: int) -> list[str]:
    """The failures, each with its seed."""
    failures = []
    sources = [(path, path.read_text("utf-8")) for path in SEEDS]
    loaded = 0
    for seed in range(first, first + count):
        path, text = sources[seed % len(sources)]
        data = mutated(text, seed)
        try:
            loaded += check(path, data, compiled=loaded % COMPILED_EVERY == 0) != "refused"
        except Exception:
            failures.append(f"seed {seed} of {path.name}\n{traceback.format_exc()}")
    return failures


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_mutated_recipes(first: int) -> None:
    assert run(first, 500) == []


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(2000, 20000, 3000))
def test_many_mutated_recipes(first: int) -> None:
    assert run(first, 3000) == []


@pytest.mark.parametrize("seed", range(40))
def test_the_command_says_what_is_wrong_with_bytes(seed: int, tmp_path: Path) -> None:
    source = SEEDS[seed % len(SEEDS)]
    path = tmp_path / "recipe.yaml"
    path.write_bytes(mutated(source.read_text("utf-8"), 10_000_000 + seed))
    output = dtrain("lint", str(path), "--static", "--format", "json")
    assert output.code in (0, 1)
    assert (output.code == 1) == any(item["severity"] == "error" for item in output.diagnostics)


def check_generated(first: int, count: int, compiled: bool) -> None:
    for seed in range(first, first + count):
        text = generated(seed)
        loaded = recipe.load(str(CASES / f"generated_{seed}.yaml"), text=text)
        assert loaded.recipe is not None, (seed, text, loaded.diagnostics)
        assert loaded.diagnostics == [], (seed, text, loaded.diagnostics)
        if compiled:
            planned, found = plan.compile(loaded.recipe)
            assert planned is not None, (seed, text, found)
            assert found == [], (seed, text, found)


def test_generated_recipes_are_clean() -> None:
    check_generated(0, 60, compiled=True)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_generated_recipes_are_clean() -> None:
    check_generated(60, 500, compiled=True)


if __name__ == "__main__":
    warnings.simplefilter("error")
    found = run(int(sys.argv[2]) if len(sys.argv) > 2 else 0, int(sys.argv[1]))
    print("\n".join(found))
    print(f"{len(found)} failures of {sys.argv[1]}")
