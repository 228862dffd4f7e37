"""A run with adapters goes on: to the bit on the same layout, under any other mode as far as rounding goes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.engine.made_recipes import DEEP, WAYS, merged, write_data
from tests.engine.runs import assert_same_tensors, checkpoints, go

TUNED: dict[str, Any] = merged(
    DEEP,
    {"model": {"parameters": {"up": {"adapter": {"type": "lora", "rank": 3, "dropout": 0.2}}}}},
)
EXACT = merged(
    DEEP,
    {
        "model": {
            "parameters": {
                "up": {"adapter": {"type": "lora", "rank": 3}},
                "lora_B": {"init": {"type": "normal", "std": 0.3}},
                "logits": {"frozen": False},
            }
        },
        "training": {"precision": "fp64"},
    },
)
STOP, STEPS = 10, 21


def gone_on(folder: Path, recipe: dict[str, Any], before: str, after: str) -> tuple[Any, Any]:
    """(the last checkpoint of a run that goes on, that of one that was never stopped, in the second way)."""
    write_data(folder)
    straight = go(folder, recipe, WAYS[after])
    first = go(folder, recipe, WAYS[before], max_steps=STOP)
    moved = folder / "first"
    shutil.move(first.run_dir, moved)
    again = go(folder, recipe, WAYS[after], resume=str(moved))
    assert (straight.code, again.code) == (0, 0)
    return checkpoints(moved)[STEPS], checkpoints(straight.run_dir)[STEPS]  # it went on in the folder that it has now


@pytest.mark.parametrize("way", ["single", pytest.param("fsdp 2", marks=pytest.mark.long)])
def test_to_the_bit(tmp_path: Path, way: str) -> None:
    found, wanted = gone_on(tmp_path, TUNED, way, way)
    assert_same_tensors(found.tensors, wanted.tensors)
    trained = {name.split("/")[1] for name in wanted.tensors if name.startswith("optimizer/")}
    assert {name.partition("up.")[2] for name in trained} == {"lora_A.weight", "lora_B.weight"}


@pytest.mark.long
@pytest.mark.parametrize(("before", "after"), [("ddp 2", "fsdp 2"), ("fsdp 2", "pipeline 2"), ("pipeline 2", "ddp 2")])
def test_under_another_mode(tmp_path: Path, before: str, after: str) -> None:
    found, wanted = gone_on(tmp_path, EXACT, before, after)
    assert_same_tensors(found.tensors, wanted.tensors, rtol=1e-10, atol=1e-10)
