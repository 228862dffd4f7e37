"""DoRA: lengths of rows start as those of the weights next to them, and are trained alike in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from declarative_train.inference.trained import open_trained
from declarative_train.packs.export.export import export
from tests.engine.made_recipes import WAYS, merged
from tests.engine.runs import assert_same_tensors, checkpoints, go
from tests.packs.pretrained.test_storages import STEPS, tuned, write_base

MAGNITUDE = "layers.2.up.lora_magnitude_vector"


def recipe(precision: str = "fp64", storage: Any = None) -> dict[str, Any]:
    made = tuned(storage, precision)
    made["model"]["parameters"]["up"]["adapter"] = {"type": "dora", "rank": 3}
    return made


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "fsdp 2" else pytest.mark.long) for way in WAYS if way != "single"]
)
def test_every_mode_trains_the_same(tmp_path: Path, way: str) -> None:
    write_base(tmp_path)
    wanted, found = (checkpoints(go(tmp_path, recipe(), WAYS[each]).run_dir)[STEPS] for each in ("single", way))
    assert f"model/{MAGNITUDE}" in wanted.tensors
    assert f"optimizer/{MAGNITUDE}/exp_avg" in wanted.tensors
    assert_same_tensors(found.tensors, wanted.tensors, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("storage", [None, pytest.param("nf4", marks=pytest.mark.long)])
def test_it_starts_as_the_base_and_is_merged(tmp_path: Path, storage: Any) -> None:
    """The lengths are those of what the base is held as."""
    write_base(tmp_path)
    first = merged(recipe("fp32", storage), {"model": {"parameters": {"lora_B": None}}})
    unmoved = merged(first, {"training": {"optimizer": {"type": "sgd", "lr": 0.0}}})
    begun = open_trained(go(tmp_path, unmoved, max_steps=1).run_dir)
    lengths = begun.module().get_parameter("layers.2.up.weight").norm(dim=1)
    assert torch.allclose(begun.module().get_parameter(MAGNITUDE), lengths, rtol=0, atol=1e-6)
    trained = open_trained(go(tmp_path, recipe("fp32", storage)).run_dir)
    x = torch.randn(5, 20)
    (ours,), (whole,) = trained.module()(x), trained.merge_adapters().module()(x)
    assert (ours - whole).abs().max() < 1e-5
    exported = load_file(export(trained, "safetensors", tmp_path / "out").folder / "model.safetensors")
    moved = trained.module().get_parameter(MAGNITUDE)
    assert torch.allclose(exported["layers.2.up.weight"].norm(dim=1), moved, atol=1e-5)
    assert (moved - lengths).abs().max() > 1e-2
