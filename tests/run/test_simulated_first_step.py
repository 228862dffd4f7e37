"""The numbers of `trace --values`, rank by rank, are those of real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.app.views.first_step import first_step
from declarative_train.run.simulated_first_step import RankedStep, compute_ranked_step
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, on_pipeline, write_data
from tests.engine.parity import Recording, record

SMALL = merged(DEEP, {"training": {"lr_schedule": None, "clip_grad_norm": 0.5, "global_batch_size": 4}})
TWO_STAGES = merged(on_pipeline(2, "gpipe", 2), {"training": {"global_batch_size": 2}})
TWO_STAGES["parallelism"]["pipeline"]["microbatches"] = 2


def on_both(directory: Path, changes: dict[str, Any]) -> tuple[Recording, RankedStep]:
    write_data(directory)
    recipe = merged(SMALL, changes)
    return record(directory, recipe, num_steps=1), compute_ranked_step(compiled(directory, recipe))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(WAYS["ddp 2"], id="ddp"),
        pytest.param(WAYS["dp 2"], id="dp", marks=pytest.mark.long),
        pytest.param(WAYS["fsdp 2"], id="fsdp", marks=pytest.mark.long),
        pytest.param(TWO_STAGES, id="pipeline", marks=pytest.mark.long),
    ],
)
def test_the_numbers_are_those_of_real_ranks(tmp_path: Path, changes: dict[str, Any]) -> None:
    real, shown = on_both(tmp_path, changes)
    assert real.sample_ids == [tuple(number for part in shown.parts for number in part.samples)]
    assert shown.loss == pytest.approx(real.losses[0], rel=1e-6)
    for name in shown.shown:
        np.testing.assert_allclose(shown.gradients[name], real.gradients[0][name], atol=1e-7)
        np.testing.assert_allclose(shown.after[name], real.parameters[name], atol=1e-6)


@pytest.mark.parametrize("way", ["ddp 3", "hybrid 2 x 2", "pipeline 2 x ddp 2", "single"])
def test_gradients_are_combined_and_fit_80_columns(tmp_path: Path, way: str) -> None:
    write_data(tmp_path)
    changes = merged(WAYS[way], {"training": {"global_batch_size": 24, "clip_grad_norm": None}})
    plan = compiled(tmp_path, merged(SMALL, changes))
    step = compute_ranked_step(plan)
    for name in step.shown:
        mean = np.mean([part.gradients[name].numpy() for part in step.parts], axis=0)
        np.testing.assert_allclose(step.gradients[name], mean, atol=1e-6)
    text = first_step(plan, 80)
    assert max(map(len, text.splitlines())) <= 80
    assert ("mean" in text) == (way != "single")
    if way == "hybrid 2 x 2":
        assert "rank 0, rank 2" in text
    if way == "pipeline 2 x ddp 2":
        assert "stage 0 -> 1" in text
