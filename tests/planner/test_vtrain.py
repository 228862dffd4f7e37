"""Step times that others measured, compared with the time model and its committed constants. The rows are those that
the constants were not fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from declarative_train.components.hardware import HARDWARE
from declarative_train.planner.estimate.constants import MEGATRON
from tests.planner.measure import compiled
from tests.planner.times import error_after_one_row
from tests.planner.vtrain import SEED, divide, errors, ordered, predicted_ms, read_rows, recipe

MEAN, MEAN_OF_GROUP, IN_ORDER = 0.12, 0.15, 0.9


def test_rows_that_were_not_fitted_are_predicted() -> None:
    _, others = divide(read_rows(), SEED)
    found = errors(others)
    assert np.abs(found).mean() < MEAN
    for group in {row.group for row in others}:
        assert np.abs(found[[row.group == group for row in others]]).mean() < MEAN_OF_GROUP, group
    assert ordered(others) > IN_ORDER
    assert 0.85 < (np.abs(np.log1p(found)) <= MEGATRON.error).mean() < 0.95


def test_one_row_of_a_gpu_predicts_its_others_within_a_tenth() -> None:
    """Each of the rows in turn is the one that is known; the error is the mean over all others."""
    _, rows = divide(read_rows(), SEED)
    assert error_after_one_row(rows) <= 0.1


def test_a_plan_has_the_time_of_the_row_that_it_describes(tmp_path: Path) -> None:
    """The other test builds placements by hand; here the recipe is compiled."""
    assert HARDWARE["a100-sxm-80gb"].reached == 0.869
    row = next(each for each in read_rows() if (each.tensor, each.data, each.pipeline) == (1, 2, 1))
    path = tmp_path / "gpt.yaml"
    path.write_text(recipe(row, row.layers, "ddp", f"{{gpus: {row.data}, hardware: a100-sxm-80gb}}"))
    estimate = compiled(path, "gpt").estimate
    assert estimate is not None
    assert estimate.step_s is not None
    assert 0.4 < estimate.step_s * 1e3 / predicted_ms(row) < 1.0  # the host of our engine is assumed to be faster
