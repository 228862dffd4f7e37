"""Convolution weights lie in memory with the channels last: nothing but the time of a step may depend on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.engine.engine import Engine
from declarative_train.engine.step import model_preparation as model
from tests.alone import of_core
from tests.engine.made_recipes import DIGITS, WAYS, compiled, merged, write_data
from tests.engine.runs import assert_same_tensors, go, last_tensors

IMAGES: dict[str, Any] = {name: section for name, section in DIGITS.items() if name != "evaluation"} | {
    "model": {
        "graph": {
            "grown": {"type": "linear", "out_features": 48, "input": "x"},
            "image": "reshape(grown, B, 3, 4, 4)",
            # a bias would have the gradient 0, and rounding noise for its difference
            "first": {"type": "conv2d", "out_channels": 6, "kernel_size": 3, "padding": 1, "bias": False},
            "norm": {"type": "batch_norm", "over": "4 samples"},
            "act": {"type": "relu"},
            "pool": {"type": "max_pool2d", "kernel_size": 2},
            "wider": {"type": "conv_transpose2d", "out_channels": 4, "kernel_size": 2, "stride": 2},
            "each": {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "groups": 4},
            "flat": {"type": "flatten"},
            "logits": {"type": "linear", "out_features": 10},
        }
    },
    "training": {
        "epochs": 1,
        "global_batch_size": 24,
        "precision": "fp64",
        "clip_grad_norm": 1.0,
        "optimizer": {"type": "adam", "lr": 0.01},
    },
    "checkpoint": {"every": "3 steps"},
}


LONG = pytest.mark.long
QUICK = ("adafactor", "adamw", "sgd")  # one reads rows and columns of a weight, the others each number


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path)
    return tmp_path


def test_the_channels_of_weights_and_results_are_last(directory: Path) -> None:
    engine = Engine(compiled(directory, IMAGES), torch.device("cpu"))
    seen = {}
    for name, part in engine.model.named_modules():
        if name in ("first", "pool", "wider", "each"):
            part.register_forward_hook(lambda _, __, y, name=name: seen.update({name: y}))
    engine.model(torch.zeros(4, 20, dtype=torch.float64))
    for name in ("first", "wider", "each"):
        weight = engine.model.get_parameter(f"{name}.weight")
        assert weight.is_contiguous(memory_format=torch.channels_last), name
    assert [name for name, y in seen.items() if y.is_contiguous(memory_format=torch.channels_last)] == list(seen)


def test_beside_a_plugin_weights_stay_as_usual(directory: Path) -> None:
    """Its code may use `view`, which refuses a tensor whose channels are last."""
    plugin = directory / "flat.py"
    plugin.write_text("from torch import nn\n\n\nclass Flat(nn.Module):\n    pass\n")
    engine = Engine(replace(compiled(directory, IMAGES), plugins=(str(plugin),)), torch.device("cpu"))
    for name in ("first", "wider", "each"):
        assert engine.model.get_parameter(f"{name}.weight").is_contiguous(), name


@pytest.mark.parametrize(
    ("norm", "last"),
    [
        ({"type": "batch_norm"}, True),
        ({"type": "group_norm", "num_groups": 1}, True),
        ({"type": "group_norm", "num_groups": 3}, False),
        ({"type": "instance_norm"}, False),
    ],
)
def test_on_cpu_channels_are_last_where_the_norms_are_faster_so(
    directory: Path, norm: dict[str, Any], last: bool
) -> None:
    """A ResNet of group norms, the default of the shipped one, took 1.3 (bf16: 2.7) times as long with them last."""
    graph = {name: norm if name == "norm" else node for name, node in IMAGES["model"]["graph"].items()}
    engine = Engine(compiled(directory, IMAGES | {"model": {"graph": graph}}), torch.device("cpu"))
    for name in ("first", "wider"):  # of one channel in each group both layouts are the same
        weight = engine.model.get_parameter(f"{name}.weight")
        assert weight.is_contiguous(memory_format=torch.channels_last) == last, name


@pytest.mark.parametrize("word", [True, False])
def test_as_the_recipe_says(directory: Path, word: bool) -> None:
    """Also where `auto` would do otherwise, and in each copy of `dp`."""
    norm = {"type": "group_norm", "num_groups": 3} if word else {"type": "batch_norm", "over": "4 samples"}
    graph = {name: norm if name == "norm" else node for name, node in IMAGES["model"]["graph"].items()}
    recipe = merged(IMAGES, {"model": {"graph": graph}, "training": {"channels_last": word}})
    for way in ("single", "dp 2"):
        engine = Engine(compiled(directory, merged(recipe, WAYS[way])), torch.device("cpu"))
        weights = [part.weight for held in engine.modules for part in held.modules() if is_convolution(part)]
        assert len(weights) == 3 * (2 if way == "dp 2" else 1)
        for weight in weights:  # of one channel in each group both layouts are the same
            if weight.shape[1] > 1:
                assert weight.is_contiguous(memory_format=torch.channels_last) == word


def is_convolution(part: torch.nn.Module) -> bool:
    return isinstance(part, torch.nn.Conv2d | torch.nn.ConvTranspose2d)


@pytest.mark.parametrize("norm", [{"type": "group_norm", "num_groups": 3}, {"type": "batch_norm", "over": "4 samples"}])
@pytest.mark.parametrize("way", ["single", *(pytest.param(way, marks=LONG) for way in ("dp 2", "ddp 2"))])
def test_the_word_changes_no_number(directory: Path, way: str, norm: dict[str, Any]) -> None:
    graph = {name: norm if name == "norm" else node for name, node in IMAGES["model"]["graph"].items()}
    found = []
    for word in (True, False):
        done = go(
            directory, merged(IMAGES, {"model": {"graph": graph}, "training": {"channels_last": word}}), WAYS[way]
        )
        assert done.code == 0
        found.append(last_tensors(done.run_dir))
    assert_same_tensors(*found, rtol=1e-8, atol=1e-10)


def test_a_cast_keeps_the_layout() -> None:
    """As weights are cast once a step."""
    module = torch.nn.Conv2d(3, 8, 3)
    model.lay_out_convolutions(module)
    for _ in range(2):
        assert torch.Tensor.is_contiguous(module.weight, memory_format=torch.channels_last)
        module.bfloat16()


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param(name, marks=() if name in QUICK else LONG) for name in of_core(OPTIMIZERS) if name != "muon"],
)
def test_every_optimizer_does_the_same_in_either_layout(
    directory: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    changes = {"training": {"optimizer": {"type": optimizer, "lr": 0.01, **momentum}}}
    last = last_tensors(go(directory, IMAGES, changes).run_dir)
    monkeypatch.setattr(model, "lay_out_convolutions", lambda *_, **__: None)
    assert_same_tensors(last, last_tensors(go(directory, IMAGES, changes).run_dir), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("before", "after"),
    [("fsdp 2", "dp 2"), *(pytest.param(*each, marks=LONG) for each in (("single", "fsdp 2"), ("dp 2", "ddp 3")))],
)
def test_a_run_goes_on_in_the_other_layout(directory: Path, before: str, after: str) -> None:
    straight = last_tensors(go(directory, IMAGES).run_dir)
    first = go(directory, IMAGES, WAYS[before], max_steps=3)
    assert first.code == 0
    second = go(directory, IMAGES, WAYS[after], resume=str(first.run_dir))
    assert second.code == 0
    assert_same_tensors(straight, last_tensors(second.run_dir), rtol=1e-8, atol=1e-10)
