"""`precision: fp64`: numbers of a table are read, prepared and batched in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.recipe import load
from tests.engine.made_recipes import compiled, merged, write_recipe

ROWS = 40
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "csv", "path": "rows.csv"},
        "fields": {"x": {"columns": ["a", "b", "c"]}, "y": {"columns": ["d"]}},
        "shuffle": False,
    },
    "model": {"graph": {"o": {"type": "linear", "out_features": 1, "input": "x"}}},
    "objective": {"loss": {"type": "mse", "input": "o", "target": "y"}},
    "training": {"steps": 2, "global_batch_size": ROWS, "optimizer": {"type": "sgd", "lr": 0.01}},
}


def write_rows(folder: Path) -> np.ndarray:
    """Return floats with all their digits, in a and b, and whole numbers, in c; d is the target."""
    draw = np.random.default_rng(0)
    values = np.stack([draw.normal(size=ROWS), 3 + draw.normal(size=ROWS), draw.integers(0, 256, ROWS)], axis=1)
    lines = [f"{a!r},{b!r},{int(c)},{0.1 * at}" for at, (a, b, c) in enumerate(values.tolist())]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,d", *lines]))
    return values


def batch_of(folder: Path, field: dict[str, Any], precision: str) -> np.ndarray:
    changes = {"data": {"fields": {"x": field}}, "training": {"precision": precision}}
    plan = compiled(folder, merged(RECIPE, changes))
    (parts,) = TrainingBatches(plan.data, plan.batch, 0, open_sets(plan.data)).iterate(1, 1)
    return parts[0].tensors["x"].numpy()


@pytest.mark.parametrize("way", ["plain", "scale", "standard", "minmax"])
def test_a_batch_has_the_digits_of_the_file(tmp_path: Path, way: str) -> None:
    values = write_rows(tmp_path)
    fields: dict[str, tuple[dict[str, Any], np.ndarray]] = {
        "plain": ({}, values),
        "scale": ({"scale": 1 / 255}, values * (1 / 255)),
        "standard": ({"normalize": "standard"}, (values - values.mean(0)) / values.std(0)),
        "minmax": ({"normalize": "minmax"}, (values - values.min(0)) / (values.max(0) - values.min(0))),
    }
    keys, wanted = fields[way]
    single = batch_of(tmp_path, keys, "fp32")  # first: nothing that is kept of it serves the other run
    assert single.dtype == np.float32
    assert np.abs(single - wanted).max() > 1e-10
    found = batch_of(tmp_path, keys, "fp64")
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-15, atol=0 if way in ("plain", "scale") else 4e-15)


def test_a_dtype_of_the_recipe_holds(tmp_path: Path) -> None:
    write_rows(tmp_path)
    assert batch_of(tmp_path, {"dtype": "float32"}, "fp64").dtype == np.float32


def test_a_whole_number_that_float64_would_round_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b,c,d\n1,2,9007199254740993,3\n1,2,4,5\n")
    changes = {"data": {"fields": {"x": {"columns": ["a", "b", "c"]}}}, "training": {"precision": "fp64"}}
    loaded = load(str(write_recipe(tmp_path, merged(RECIPE, changes))))
    assert loaded.recipe is not None
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is None
    (message,) = (each.message for each in diagnostics if each.is_error)
    assert "`c` is 9007199254740993, and float64 would make it 9007199254740992" in message
