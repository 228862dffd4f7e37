"""A column that is the target in other words is told, and one that only goes along with it is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room

RECIPE = """\
data:
  source: {{type: csv, path: x.csv}}
  fields:
    x: {{columns: [a, b], normalize: standard}}
    y: {target}
model:
  graph:
    net: {{type: linear, out_features: {outputs}, input: x}}
objective:
  loss: {{type: {loss}, input: net, target: y}}
training: {{epochs: 1, global_batch_size: 10, optimizer: {{type: adam, lr: 1e-3}}}}
"""
CLASSES = {"target": "{type: category, column: y}", "outputs": "3", "loss": "cross_entropy"}
NUMBERS = {"target": "{columns: [y], normalize: standard}", "outputs": "1", "loss": "mse"}


def found(folder: Path, rows: list[tuple[object, object, object]], words: dict[str, str]) -> list[str]:
    (folder / "x.csv").write_text("a,b,y\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows))
    (folder / "x.yaml").write_text(RECIPE.format(**words))
    recipe = recipe_room.load(str(folder / "x.yaml")).recipe
    assert recipe is not None
    return [item.message for item in planner.compile(recipe)[1] if item.code == "O016"]


@pytest.mark.parametrize(
    ("code", "is_told"),
    [
        ({0: 7, 1: 3, 2: 5}.__getitem__, True),
        (lambda y: min(y, 1), False),  # two classes share a value
        (lambda y: y + 0.001 * random.random(), False),  # goes along
    ],
)
def test_a_code_of_the_class(code: object, is_told: bool, tmp_path: Path) -> None:
    assert callable(code)
    rows = [(code(at % 3), random.random(), at % 3) for at in range(60)]
    messages = found(tmp_path, rows, CLASSES)
    assert bool(messages) == is_told
    assert all("`a`, which has a distinct value for each class of the target `y`" in each for each in messages)


@pytest.mark.parametrize(("noise", "is_told"), [(0.0, True), (1e-2, False)])
def test_a_multiple_of_the_number(noise: float, is_told: bool, tmp_path: Path) -> None:
    draw = random.Random(0)
    amounts = [draw.uniform(1, 500) for _ in range(60)]
    rows = [(draw.random(), -3 * y + 4 + draw.gauss(0, noise), y) for y in amounts]
    assert bool(found(tmp_path, rows, NUMBERS)) == is_told


def test_few_rows_tell_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, [(at % 3, at, at % 3) for at in range(12)], CLASSES) == []
