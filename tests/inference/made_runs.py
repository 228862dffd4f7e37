"""Small runs to be used: their recipes, their tables, and where they lie."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.run.launch import run
from declarative_train.run.rank_job import default_sinks

NAMES = ("barolo", "grignolino", "barbera")
SITES = ("hill", "plain", "river")

WINE = """
name: wine
data:
  source: {type: csv, path: wine.csv}
  fields:
    features: {columns: "f*", normalize: standard}
    site: {type: category, column: site}
    kind: {type: category, column: kind}
  split: {validation: 0.25}
model:
  graph:
    place: {type: embedding, embedding_dim: 3, input: site}
    joined: {type: concat, inputs: [features, place]}
    hidden: {type: linear, out_features: 8}
    act: {type: relu}
    logits: {type: linear, out_features: 3}
objective:
  loss: {type: cross_entropy, input: logits, target: kind}
  metrics: [accuracy, f1]
training: {epochs: 20, global_batch_size: 16, optimizer: {type: adam, lr: 0.02}}
evaluation: {every: 5 epochs}
checkpoint: {best: {metric: validation/accuracy, mode: max}}
layout: {device: cpu}
logging: {dir: runs}
"""

HOUSES = """
name: houses
data:
  source: {type: csv, path: houses.csv}
  fields:
    x: {columns: "f*", normalize: standard}
    price: {columns: [price], scale: 0.001, normalize: standard}
    sold: {columns: [sold], dtype: float32}
  split: {validation: 0.25}
model:
  graph:
    hidden: {type: linear, out_features: 16, input: x}
    act: {type: tanh}
    price_hat: {type: linear, out_features: 1}
    sold_logit: {type: linear, out_features: 1, input: act}
objective:
  losses:
    price: {type: mse, input: price_hat, target: price}
    sold: {type: bce_with_logits, input: sold_logit, target: sold}
  metrics:
    rmse: {type: rmse, of: price}
    accuracy: {type: accuracy, of: sold}
training: {epochs: 30, global_batch_size: 16, optimizer: {type: adam, lr: 0.02}}
evaluation: {every: 10 epochs}
layout: {device: cpu}
logging: {dir: runs}
"""


def wine_rows(names: Sequence[str] = NAMES, count: int = 160, seed: int = 0) -> list[list[object]]:
    chance = random.Random(seed)
    rows: list[list[object]] = []
    for number in range(count):
        kind = number % 3
        features = [round(10 * column + (column == kind) * 4 + chance.gauss(0, 1), 4) for column in range(3)]
        rows.append([*features, SITES[chance.randrange(3)], names[kind]])
    return rows


def house_rows(count: int = 160, seed: int = 0) -> list[list[object]]:
    chance = random.Random(seed)
    rows: list[list[object]] = []
    for _ in range(count):
        a, b = chance.uniform(50, 200), chance.uniform(0, 10)
        rows.append([round(a, 3), round(b, 3), round(2_000 * a + 9_000 * b + chance.gauss(0, 500), 1), int(b > 5)])
    return rows


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(list(columns))
        writer.writerows(rows)
    return path


WINE_COLUMNS = ("f1", "f2", "f3", "site", "kind")
HOUSE_COLUMNS = ("f_size", "f_rooms", "price", "sold")


def trained(folder: Path, recipe: str, *set_: str, plugins: bool = False) -> Path:
    """Run a recipe that stands in `folder` with its data; the folder of the run."""
    name = recipe.split("name: ", 1)[1].split("\n", 1)[0]
    path = folder / f"{name}.yaml"
    path.write_text(recipe)
    loaded = recipe_room.load(str(path), set_=[f"logging.dir={folder / 'runs'}", *set_], plugins=plugins)
    assert loaded.recipe is not None, [item.message for item in loaded.diagnostics]
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, [item.message for item in diagnostics]
    assert run(plan, sinks=default_sinks(quiet=True), quiet=True) == 0
    return max((folder / "runs" / name).iterdir(), key=lambda each: each.stat().st_mtime_ns)
