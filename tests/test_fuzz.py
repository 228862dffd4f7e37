"""Mutated recipes: lint never fails, never takes long, and says something or gives a plan that trains a step.

`python -m tests.fuzz 20000` does the same with any number of them, and prints what became of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from declarative_train import planner, recipe
from tests.fuzz import SEEDS, Tally, fuzz, train
from tests.generated_recipes import generated
from tests.linted import CASES, dtrain
from tests.mutations import mutate

TRUE = {
    "R108",
    "D033",
    "D034",
}  # said of draws over several ranks, and of small sets that chance leaves without a class


def test_mutated_recipes() -> None:
    small = next(number for number, path in enumerate(SEEDS) if CASES in path.parents)  # the shipped ones take long
    tally = fuzz(small, 40)
    assert tally.failures == []
    trained = {what: count for what, count in tally.counts.items() if what.startswith("trained")}
    assert sum(trained.values()) > 3, tally.text()
    assert tally.counts["refused by the static rules"] > 15, tally.text()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", [0, 2000])
def test_many_mutated_recipes(first: int) -> None:
    assert fuzz(first, 2000).failures == []


@pytest.mark.parametrize("seed", range(40))
def test_the_command_says_what_is_wrong_with_bytes(seed: int, tmp_path: Path) -> None:
    source = SEEDS[seed % len(SEEDS)]
    path = tmp_path / "recipe.yaml"
    path.write_bytes(mutate(source.read_text("utf-8"), 10_000_000 + seed))
    output = dtrain("lint", str(path), "--static", "--format", "json")
    assert output.code in (0, 1)
    assert (output.code == 1) == any(item["severity"] == "error" for item in output.diagnostics)


def check_generated(first: int, count: int) -> set[str]:
    """Each is silent (but for what it draws) and has a plan; the modes that were seen."""
    modes = set()
    for seed in range(first, first + count):
        text = generated(seed)
        loaded = recipe.load(str(CASES / f"generated_{seed}.yaml"), text=text)
        assert loaded.recipe is not None, (seed, text, loaded.diagnostics)
        planned, found = planner.compile(loaded.recipe)
        assert planned is not None, (seed, text, found)
        assert [each for each in (*loaded.diagnostics, *found) if each.code not in TRUE] == [], (seed, text)
        modes.add(planned.layout.mode)
    return modes


def test_generated_recipes_are_clean() -> None:
    assert check_generated(0, 25) == {"single", "dp", "ddp", "fsdp", "pipeline"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_many_generated_recipes_are_clean() -> None:
    check_generated(25, 500)


@pytest.mark.parametrize("first", [0, pytest.param(12, marks=pytest.mark.long)])
def test_generated_recipes_train_a_step(first: int) -> None:
    tally = Tally()
    for seed in range(first, first + 12):
        train(CASES / f"generated_{seed}.yaml", generated(seed), tally)
    assert tally.counts["trained in one process"] > 5, tally.text()
    assert tally.counts["trained by its ranks"] > 0, tally.text()
