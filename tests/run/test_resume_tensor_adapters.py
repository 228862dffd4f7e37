"""Adapters and quantised weights on the `tensor` axis: the numbers and checkpoints of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

import declarative_train as dt
from declarative_train.run.event import StepDone
from tests.engine.made_recipes import merged, write_recipe
from tests.engine.runs import assert_same_tensors, checkpoints, go
from tests.run.test_resume_tensor import MODEL, RECIPE, STEPS, TENSOR, TENSOR_FSDP, on

PLAIN: dict[str, Any] = merged(
    merged(RECIPE, {"model": None}),
    {
        "model": {
            "blocks": merged(
                MODEL["blocks"],
                {"block": {"graph": {"up": {"out_features": 128}, "down": {"out_features": 128}}}},
            ),
            "graph": merged(MODEL["graph"], {"embed": {"embedding_dim": 128}, "layers": {"repeat": 2}}),
        }
    },
)


def adapted(dropout: float) -> dict[str, Any]:
    adapter = {"rank": 2, "alpha": 3, "dropout": dropout}
    parameters = {
        "embed": {"storage": "int8"},
        "layers.0": {"storage": "nf4", "adapter": {"type": "dora", **adapter}},
        "layers.1": {"storage": "int8", "adapter": {"type": "lora", **adapter}},
        "lora_B": {"init": {"type": "normal", "std": 0.2}},
        "logits": {"frozen": False},
    }
    return merged(PLAIN, {"model": {"weights": "base.safetensors", "parameters": parameters}})


@pytest.fixture(autouse=True)
def _data(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    np.savez(tmp_path / "tokens.npz", **{key: random.integers(0, 48, (40, 6)) for key in ("tokens", "next")})
    model = dt.load(str(write_recipe(tmp_path, PLAIN, "plain.yaml"))).plan().module()
    save_file({name: item.clone() for name, item in model.state_dict().items()}, tmp_path / "base.safetensors")


@pytest.mark.long  # the adapters are divided as other parameters, which test_resume_tensor.py resumes
def test_any_layout_resumes_it(tmp_path: Path) -> None:
    recipe = adapted(0.0)
    straight = go(tmp_path, recipe)
    found = go(tmp_path, recipe, TENSOR_FSDP, max_steps=3)
    for way, steps in ((on(1), 2), (TENSOR, None)):
        found = go(tmp_path, recipe, way, resume=str(found.run_dir), max_steps=steps)
        assert found.code == 0
    one, other = checkpoints(straight.run_dir)[STEPS], checkpoints(found.run_dir)[STEPS]
    assert one.tensors.keys() == other.tensors.keys()
    assert not any(name.endswith("up.weight") for name in one.tensors)  # which the base has
    assert_same_tensors(one.tensors, other.tensors, rtol=1e-9, atol=1e-11)


def test_dropout_in_adapters_draws_as_in_one_process(tmp_path: Path) -> None:
    losses = [
        [event.loss for event in go(tmp_path, adapted(0.3), way, max_steps=2).of(StepDone)] for way in (on(1), TENSOR)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
    assert losses[0] != pytest.approx(
        [event.loss for event in go(tmp_path, adapted(0.0), max_steps=2).of(StepDone)], rel=1e-3
    )
