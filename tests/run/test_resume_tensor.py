"""Runs on the `tensor` axis: the same start values, losses, metrics and checkpoints as one process, and any layout
resumes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.run.event import EvaluationDone, StepDone
from tests.engine.made_recipes import compiled, merged
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.engine.parity import joined, whole
from tests.engine.runs import assert_same_tensors, checkpoints, go

STEPS = 8
MODEL: dict[str, Any] = {
    "blocks": {
        "block": {
            "inputs": ["x"],
            "graph": {
                "norm": {"type": "layer_norm"},
                "attn": {"type": "self_attention", "heads": 4, "kv_heads": 2, "causal": True, "qk_norm": True},
                "mid": "x + attn",
                "up": {"type": "linear", "out_features": 12},
                "act": {"type": "gelu"},
                "down": {"type": "linear", "out_features": 16},
                "out": "mid + down",
            },
            "output": "out",
        }
    },
    "graph": {
        "embed": {"type": "embedding", "num_embeddings": 48, "embedding_dim": 16, "input": "tokens"},
        "layers": {"type": "block", "repeat": 4},
        "logits": {"type": "linear", "out_features": 48, "bias": False},
    },
    "parameters": {"logits.weight": {"tie": "embed.weight"}},
}
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "npy", "path": "tokens.npz"},
        "fields": {key: {"column": key, "dtype": "int64"} for key in ("tokens", "next")},
        "split": {"validation": 0.25},
    },
    "model": MODEL,
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "next", "label_smoothing": 0.1}},
    "training": {
        "steps": STEPS,
        "global_batch_size": 8,
        "optimizer": {"type": "adamw", "lr": 1e-2},
        "clip_grad_norm": 0.5,
        "precision": "fp64",
        "ema": {"decay": 0.9},
    },
    "evaluation": {"every": "4 steps"},
    "layout": {"device": "cpu"},
    "logging": {"dir": "runs", "every": "1 step"},
}
MEASURED = {"objective": {"metrics": ["accuracy"]}}  # reads the logits of the whole vocabulary


def on(gpus: int, **axes: Any) -> dict[str, Any]:
    return {"parallelism": axes or "single", "layout": {"gpus": gpus}}


TENSOR = on(2, tensor=2)
TENSOR_FSDP = on(4, tensor=2, data={"shard": 2})
TENSOR_PIPELINE = on(4, tensor=2, pipeline={"stages": 2, "microbatches": 2})


@pytest.fixture(autouse=True)
def _data(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (40, 6)) for key in ("tokens", "next")})


def start_values(plan: Any) -> dict[str, np.ndarray]:
    with kept_engine(plan) as engine:
        from declarative_train.components.layers.modules.divided import find_cuts

        cuts = find_cuts(engine.model)
        return {name: joined(whole(item), name, cuts, engine) for name, item in engine.model.named_parameters()}


@pytest.mark.parametrize("way", [TENSOR, TENSOR_FSDP], ids=["tensor 2", "tensor 2 x fsdp 2"])
def test_start_values_are_those_of_one_process_to_the_bit(tmp_path: Path, way: dict[str, Any]) -> None:
    (wanted,) = on_ranks(plan := compiled(tmp_path, RECIPE), start_values, plan)
    for found in on_ranks(plan := compiled(tmp_path, merged(RECIPE, way)), start_values, plan):
        assert found.keys() == wanted.keys()
        for name, values in wanted.items():
            assert np.array_equal(found[name], values), name


def test_every_layout_resumes_it(tmp_path: Path) -> None:
    straight = go(tmp_path, RECIPE, MEASURED)
    found = go(tmp_path, RECIPE, MEASURED, TENSOR_FSDP, max_steps=3)
    for way, steps in ((on(1), 2), (TENSOR, 2), (TENSOR_PIPELINE, None)):
        found = go(tmp_path, RECIPE, MEASURED, way, resume=str(found.run_dir), max_steps=steps)
        assert found.code == 0
    for kind in (StepDone, EvaluationDone):
        wanted = [event.loss if kind is StepDone else event.values for event in straight.of(kind)]
        given = [event.loss if kind is StepDone else event.values for event in found.of(kind)]
        assert given == [pytest.approx(value, rel=1e-10) for value in wanted]
    one, other = checkpoints(straight.run_dir)[STEPS], checkpoints(found.run_dir)[STEPS]
    assert_same_tensors(one.tensors, other.tensors, rtol=1e-9, atol=1e-11)
    assert any(name.startswith("ema/") for name in one.tensors)


def test_weights_of_another_run_are_divided(tmp_path: Path) -> None:
    first = go(tmp_path, RECIPE, TENSOR)
    begun = {"model": {"weights": {"": {"path": str(first.run_dir)}}}, "training": {"steps": 2}}
    losses = [
        [event.loss for event in go(tmp_path, merged(RECIPE, begun), way).of(StepDone)] for way in (on(1), TENSOR_FSDP)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert losses[0][0] < first.of(StepDone)[0].loss
