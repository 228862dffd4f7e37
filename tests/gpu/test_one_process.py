"""One process on the GPU, next to double precision on the CPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.device import NO_GPU, has_device, kind
from tests.gpu.recipes import MODELS
from tests.gpu.run_cell import ran

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_device(), reason=NO_GPU)]

BOUNDS = {"fp64": 1e-9, "fp32": 1e-4, "bf16": 5e-2, "fp16": 1e-2}
TRAINING: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "clipped": {"clip_grad_norm": 0.1},
    "checkpointing": {"activation_checkpointing": "all"},
    "deterministic": {"deterministic": True},
}


def too_far(model: str, found: dict[str, float]) -> dict[str, float]:
    """Return the differences above their bounds. A bias before a batch norm has the gradient 0, of which rounding
    leaves 1e-15 of the largest gradient: the bound of `images` is wider."""
    bounds = BOUNDS | ({"fp64": 1e-8} if model == "images" else {})
    return {name: value for name, value in found.items() if not value <= bounds[name]}


def test_the_environment_is_known() -> None:
    found = ran("environment")
    assert found["doctor"] == 0
    assert found["is_known"], f"add {found['name']} to components/hardware"


@pytest.mark.parametrize("model", list(MODELS))
def test_gradients_in_every_precision(model: str) -> None:
    lacks = kind() == "cpu" and model == "recurrent"  # torch has no LSTM in fp16 there
    found = ran(
        "parity", model=model, precisions=[name for name in BOUNDS if not (lacks and name == "fp16")], training={}
    )
    assert too_far(model, found) == {}


@pytest.mark.parametrize("how", list(TRAINING)[1:])
@pytest.mark.parametrize("model", ["gpt", "images"])
def test_gradients_of_every_way_to_make_a_step(model: str, how: str) -> None:
    found = ran("parity", model=model, precisions=["fp64", "bf16"], training=TRAINING[how])
    assert too_far(model, found) == {}


@pytest.mark.parametrize("again", ["none", "blocks", "all"])
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-4), ("bf16", 3e-2)])
def test_compiled_units_give_the_same_gradients(precision: str, bound: float, again: str) -> None:
    found = ran("compiled_units", model="llama", precision_name=precision, again=again)
    assert found["difference"] <= bound
    assert found["breaks"] == 0


def test_every_layer() -> None:
    found = ran("components")
    assert found["number"] > 40
    # torch's kernels for CUDA have 1/6 in float32
    bounds = {"hardsigmoid": 1e-7, "hardswish": 1e-7}
    assert {name: value for name, value in found["apart"].items() if not value <= bounds.get(name, 0)} == {}


def test_recurrent_layers_compute_in_bfloat16() -> None:
    """Under autocast, torch's own on CUDA compute in float16 there, which is nearer to float64."""
    found = ran("recurrent_layers")
    assert [dtype for dtype, _ in found.values()] == ["torch.bfloat16"] * 3
    assert all(apart < 0.05 for _, apart in found.values())


def test_every_optimizer() -> None:
    found = ran("optimizers")
    assert len(found) >= 8
    bounds = {"muon": 2e-3}  # torch's Muon orthogonalises in bfloat16
    assert {name: value for name, value in found.items() if not value <= bounds.get(name, 1e-9)} == {}


def test_no_step_waits_for_the_device() -> None:
    found = ran("no_synchronisation")
    assert found["number"] > 15
    assert found["waited"] == {}


def test_dropout_is_drawn_from_the_seed() -> None:
    found = ran("draws")
    assert found["same"]
    assert found["others"]
    assert 0.49 < found["kept"] < 0.51


@pytest.mark.parametrize(
    "training",
    [{}, {"precision": "fp16"}, {"non_finite": "skip", "optimizer": {"type": "sgd", "lr": 0.1, "momentum": 0.9}}],
    ids=["adamw", "fp16", "sgd"],
)
def test_a_first_step_that_is_left_out(training: dict[str, Any]) -> None:
    found = ran("unhurt_by_a_lost_first_step", training={"non_finite": "skip", **training})
    assert found["code"] == 0
    assert found["largest"] < 100


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_with_their_values(workers: int) -> None:
    found = ran("pinned", workers=workers)
    assert found["wrong"] == 0
    assert found["pins"] > 0 or kind() == "cpu"


@pytest.mark.parametrize(("model", "training"), [("gpt", {}), ("llama", {"activation_checkpointing": "blocks"})])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_most_memory_is_what_the_plan_says(model: str, training: dict[str, Any], precision: str) -> None:
    large = {"layers": 8, "width": 1024, "heads": 16, "hidden": 4096, "vocabulary": 32000}
    small = {"layers": 2, "width": 32, "heads": 2, "hidden": 64, "vocabulary": 64}
    if model == "llama":
        large["kv_heads"], small["kv_heads"] = 8, 1
    sizes = small if kind() == "cpu" else large
    found = ran("memory", model=model, training={"precision": precision, **training}, sizes=sizes)
    assert found["predicted"] > 0
    assert found["is_traced"]
    if found["measured"] is not None:
        assert 0.8 <= found["predicted"] / found["measured"] <= 1.25, found
