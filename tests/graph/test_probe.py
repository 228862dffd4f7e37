"""Shapes are found by running layers, and what is large is run where it costs nothing."""

from __future__ import annotations

import resource

import pytest
import torch
from torch.nn import functional

from declarative_train.components.layers import LAYERS
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.probe import probe_layer


@pytest.mark.parametrize(("length", "device"), [(100, "cpu"), (200_000, "meta")])
def test_a_long_row_of_ids_in_a_wide_table_is_not_computed(
    length: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ids are few enough, what is looked up for them is 16 GB: lint took 11 s and all of the memory."""
    devices = []
    honest = functional.embedding

    def noted(x: torch.Tensor, *more: object) -> torch.Tensor:
        devices.append(x.device.type)
        return honest(x, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(functional, "embedding", noted)
    ids = {"x": TensorSpec((length,), "int64", 256)}
    layer = LAYERS["embedding"](num_embeddings=256, embedding_dim=4096)
    assert probe_layer(layer, ids, ids).outputs == (TensorSpec((length, 4096)),)
    assert devices == [device, device]


def test_an_image_that_gets_thousands_of_channels_is_not_computed() -> None:
    """It was 10 GB and half a minute."""
    image = {"x": TensorSpec((3, 224, 224), "float32")}
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = probe_layer(LAYERS["conv2d"](out_channels=4096, kernel_size=3), image, image)
    assert found.outputs == (TensorSpec((4096, 222, 222), "float32"),)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begun < 1_000_000  # kB


def test_a_layer_of_a_small_transformer_runs_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On meta it would import `torch._dynamo`, which a run of one process never needs."""
    devices = []
    honest = functional.linear

    def noted(x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        devices.append(x.device.type)
        return honest(x, *more)

    monkeypatch.setattr(functional, "linear", noted)
    rows = {"x": TensorSpec((256, 128), "float32")}
    assert probe_layer(LAYERS["linear"](out_features=512), rows, rows).outputs == (TensorSpec((256, 512)),)
    assert devices == ["cpu", "cpu"]
