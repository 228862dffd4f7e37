"""Runs on the `context` axis: the losses, metrics and checkpoints of one process, and any layout resumes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from declarative_train.run.event import EvaluationDone, StepDone
from tests.engine.made_recipes import merged
from tests.engine.runs import assert_same_tensors, checkpoints, go
from tests.run.test_resume_tensor import MEASURED, RECIPE, STEPS, on

MASKED = merged(RECIPE, {"objective": {"loss": {"ignore_index": 0}}})


@pytest.mark.long  # test_resume_tensor.py resumes a layout that divides parameters as well
def test_any_layout_resumes_it(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (39, 8)) for key in ("tokens", "next")})
    straight = go(tmp_path, MASKED, MEASURED)
    found = go(tmp_path, MASKED, MEASURED, on(4, context=2, data={"shard": 2}), max_steps=3)
    staged = on(4, context=2, pipeline={"stages": 2, "microbatches": 2})
    for way, steps in ((on(1), 2), (staged, 1), (on(4, context=2, tensor=2), None)):
        found = go(tmp_path, MASKED, MEASURED, way, resume=str(found.run_dir), max_steps=steps)
        assert found.code == 0
    for kind in (StepDone, EvaluationDone):
        wanted = [event.loss if kind is StepDone else event.values for event in straight.of(kind)]
        given = [event.loss if kind is StepDone else event.values for event in found.of(kind)]
        assert given == [pytest.approx(value, rel=1e-10) for value in wanted]
    sizes = [{event.num_samples for event in done.of(EvaluationDone)} for done in (straight, found)]
    assert sizes[0] == sizes[1]
    one, other = checkpoints(straight.run_dir)[STEPS], checkpoints(found.run_dir)[STEPS]
    assert_same_tensors(one.tensors, other.tensors, rtol=1e-9, atol=1e-11)
