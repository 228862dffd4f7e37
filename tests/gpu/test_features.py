"""On the GPU: adapters and weights in fewer bits, packed documents, pictures, and what is done with a trained model."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gpu.device import NO_GPU, has_device, kind
from tests.gpu.run_cell import ran
from tests.gpu.test_one_process import BOUNDS

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_device(), reason=NO_GPU)]

LARGE = {"layers": 8, "width": 1024, "heads": 16, "kv_heads": 8, "hidden": 4096, "vocabulary": 32000}
SMALL = {"layers": 2, "width": 64, "heads": 2, "kv_heads": 1, "hidden": 64, "vocabulary": 64}


@pytest.mark.parametrize(("storage", "adapter"), [("nf4", "lora"), ("int8", "dora"), ("bf16", "lora"), (None, "dora")])
def test_gradients_of_adapters(storage: str | None, adapter: str) -> None:
    found = ran("adapters", storage=storage, kind=adapter)
    assert {name: value for name, value in found.items() if not value <= BOUNDS[name]} == {}


def test_weights_in_fewer_bits_take_less_memory_and_as_much_as_foretold() -> None:
    sizes = SMALL if kind() == "cpu" else LARGE
    found: dict[str, Any] = {each: ran("memory_of_held", storage=each, sizes=sizes) for each in ("bf16", "int8", "nf4")}
    assert found["nf4"]["predicted"] < found["int8"]["predicted"] < found["bf16"]["predicted"]
    for each in found.values():
        assert each["is_traced"]
        if each["measured"] is not None:
            assert 0.8 <= each["predicted"] / each["measured"] <= 1.25, found


@pytest.mark.parametrize("window", [None, 16])
def test_packed_documents_by_their_lengths_are_those_by_a_mask(window: int | None) -> None:
    found = ran("documents", window=window)
    assert found["calls"] == (kind() != "cpu")
    assert found["apart"] <= 2e-2


@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-3), ("bf16", 1e-1)])
def test_channels_last_changes_nothing(precision: str, bound: float) -> None:
    assert ran("channels_last", precision_name=precision)["apart"] <= bound


def test_a_trained_model_is_used() -> None:
    """Evaluations and logits as on the CPU, and the same text for the same seed."""
    found = ran("used")
    here, cpu = (each["values"] for each in found["values"])
    assert found["code"] == 0
    assert len(cpu) > 0
    assert here == pytest.approx(cpu, rel=1e-4)
    assert found["apart"] <= 1e-3
    assert found["texts"][0] == found["texts"][1]
