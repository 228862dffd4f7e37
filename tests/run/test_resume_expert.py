"""Runs on the `expert` axis: the same start values, losses and checkpoints as one process, and any layout resumes
them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.run.event import EvaluationDone, StepDone
from tests.engine.made_recipes import compiled, merged
from tests.engine.on_ranks import on_ranks
from tests.engine.runs import assert_same_tensors, checkpoints, go
from tests.run.test_resume_tensor import RECIPE, STEPS, on, start_values

MOE: dict[str, Any] = {
    "model": {
        "blocks": {
            "block": {
                "inputs": {"x": "required", "balance": "optional"},
                "graph": {
                    "norm": {"type": "rms_norm"},
                    "moe": {"type": "moe", "experts": 4, "top_k": 2, "hidden": 6, "bias_rate": 0.01}
                    | {"inputs": {"x": "norm", "balance": "balance"}},
                    "out": "x + moe",
                },
                "outputs": {"out": "out", "balance": "moe.balance"},
            }
        },
        "graph": {
            "embed": {"type": "embedding", "num_embeddings": 48, "embedding_dim": 16, "input": "tokens"},
            "layers": {"type": "block", "repeat": 2},
            "logits": {"type": "linear", "out_features": 48, "bias": False, "input": "layers.out"},
        },
    },
    "objective": {
        "losses": {
            "next": {"type": "cross_entropy", "input": "logits", "target": "next"},
            "balance": {"type": "mean", "input": "layers.balance", "weight": 0.1},
        }
    },
}
RECIPE = {key: value for key, value in RECIPE.items() if key not in ("model", "objective")} | MOE
EXPERT = on(2, expert=2)
EXPERT_FSDP = on(4, expert=2, data={"shard": 2})


@pytest.fixture(autouse=True)
def _data(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (40, 6)) for key in ("tokens", "next")})


@pytest.mark.long
@pytest.mark.parametrize("way", [EXPERT, EXPERT_FSDP], ids=["expert 2", "expert 2 x fsdp 2"])
def test_start_values_are_those_of_one_process_to_the_bit(tmp_path: Path, way: dict[str, Any]) -> None:
    (wanted,) = on_ranks(plan := compiled(tmp_path, RECIPE), start_values, plan)
    for found in on_ranks(plan := compiled(tmp_path, merged(RECIPE, way)), start_values, plan):
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            assert np.array_equal(found[name], values), name


EXPERT_DDP = on(4, expert=2, data={"replicate": 2})
EXPERT_CONTEXT = on(4, expert=2, context=2)


@pytest.mark.long
@pytest.mark.parametrize(
    "ways",
    [(EXPERT_FSDP, on(1), EXPERT, on(2, tensor=2), EXPERT_DDP), (EXPERT_CONTEXT, on(1), EXPERT_FSDP, EXPERT_CONTEXT)],
    ids=["expert", "expert x context"],
)
def test_every_layout_resumes_it(tmp_path: Path, ways: tuple[dict[str, Any], ...]) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (39, 8)) for key in ("tokens", "next")})
    straight = go(tmp_path, RECIPE)
    found = go(tmp_path, RECIPE, ways[0], max_steps=2)
    for way in ways[1:]:
        found = go(tmp_path, RECIPE, way, resume=str(found.run_dir), max_steps=None if way is ways[-1] else 1)
        assert found.code == 0
    for kind in (StepDone, EvaluationDone):
        wanted = [event.loss if kind is StepDone else event.values for event in straight.of(kind)]
        given = [event.loss if kind is StepDone else event.values for event in found.of(kind)]
        assert given == [pytest.approx(value, rel=1e-10) for value in wanted]
    one, other = checkpoints(straight.run_dir)[STEPS], checkpoints(found.run_dir)[STEPS]
    assert_same_tensors(one.tensors, other.tensors, rtol=1e-9, atol=1e-11)
    assert any("experts" in name for name in one.tensors)
