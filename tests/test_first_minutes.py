"""The recorded first minutes: each command works in an empty folder with data alone."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from benchmarks import first_minutes
from tests.linted import dtrain


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.packs
@pytest.mark.parametrize(
    ("make", "line", "recipe"),
    [
        (first_minutes.make_orders, "init --from orders.csv --target returned", "orders.yaml"),
        (first_minutes.make_digits, "init --from digits", "digits.yaml"),
    ],
)
def test_the_head_of_a_first_recipe_lists_the_commands(here: Path, make, line: str, recipe: str) -> None:  # type: ignore[no-untyped-def]
    make()
    assert dtrain(*line.split()).code == 0
    head = (here / recipe).read_text().partition("language:")[0]
    part = first_minutes.PARTS["table" if recipe == "orders.yaml" else "pictures"]
    for step in part.steps[1:]:
        command = " ".join(step.line.split()[:2])
        assert command in head or command.startswith(("head", "dtrain lint", "dtrain plan")), step


def test_long_outputs_are_shortened() -> None:
    assert first_minutes.shorten("a\nb\nc\nd\ne\n", 1, 2) == "a\n...\nd\ne"
    assert first_minutes.shorten("a\nb\n", 1, 1) == "a\nb"


@pytest.mark.long
@pytest.mark.packs
@pytest.mark.parametrize("name", first_minutes.PARTS)
def test_from_data_to_answers(name: str, here: Path) -> None:
    part = first_minutes.PARTS[name]
    part.make()
    for step in part.steps:
        line = f"{step.line} --set training.epochs=2" if step.line.startswith("dtrain run") else step.line
        first_minutes.type_line(line)
    with open("answers.csv", newline="") as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == (50 if name == "table" else 237)
    assert {"class"} < answers[0].keys()
