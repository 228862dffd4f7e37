"""Dropout draws another mask for every rank, step, chunk, microbatch and stage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from declarative_train.run.launch import run
from declarative_train.run.rank_job import default_sinks
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, write_data

NUM_STEPS, NUM_BLOCKS = 2, 6
DROPS = merged(
    DEEP,
    {
        "model": {
            "blocks": {
                "block": {
                    "graph": {"norm": None, "up": None, "out": None}
                    | {
                        "drop": {"type": "dropout", "p": 0.5, "input": "x"},
                        "up": {"type": "linear", "out_features": 16, "input": "drop"},
                        "out": "x + tanh(up)",
                    }
                }
            }
        },
        "evaluation": None,
        "checkpoint": None,
    },
)
# forwards of the whole model in a step: ranks that share the rows x chunks or microbatches
FORWARDS = {"single": 1, "ddp 2, accumulation 3": 6, "pipeline 2": 4, "zero bubble 2": 4, "pipeline 2 x ddp 2": 8}


@pytest.mark.parametrize(
    "way",  # copies of stages, ranks and microbatches; chunks; two stages on a rank
    [pytest.param(way, marks=pytest.mark.long if way in ("single", "pipeline 2") else ()) for way in FORWARDS],
)
def test_no_mask_is_drawn_twice(tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, merged(DROPS, WAYS[way]))  # which tries a step of its own
    folder = tmp_path / "masks"
    folder.mkdir()
    forward = nn.Dropout.forward

    def noted(self: nn.Dropout, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        mask: Any = forward(self, torch.ones_like(x))
        with (folder / str(os.getpid())).open("a") as stream:
            print("".join("01"[bool(kept)] for kept in mask.flatten().tolist()[:64]), file=stream)
        return x * mask

    monkeypatch.setattr(nn.Dropout, "forward", noted)
    assert run(plan, sinks=default_sinks(quiet=True), max_steps=NUM_STEPS) == 0
    masks = [line for path in folder.iterdir() for line in path.read_text().split()]
    assert len(masks) == NUM_STEPS * FORWARDS[way] * NUM_BLOCKS
    assert len(set(masks)) == len(masks)
