"""Selective activation checkpointing keeps attention and every second product: memory and work lie between none and all
of the blocks computed again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.runtime.footprint.forecast import Forecast
from declarative_train.runtime.step.selective import ATTENTION, PRODUCTS
from tests.planner.cells import Cell
from tests.planner.measure import plan_of
from tests.runtime.live_bytes import live_bytes
from tests.runtime.parity import largest_difference, record_plan

WORDS = ("none", "selective", "blocks")


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations that were really computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in PRODUCTS or func in ATTENTION:
            self.products["attention" if func in ATTENTION else "products"] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def plans(tmp_path: Path) -> dict[str, Any]:
    found = {}
    for word in WORDS:
        folder = tmp_path / word
        folder.mkdir()
        found[word] = plan_of(Cell("llama", "single", "fp64", word), folder)
    return found


def test_gradients_are_the_same(plans: dict[str, Any]) -> None:
    none, selective = (record_plan(plans[word], num_steps=2) for word in ("none", "selective"))
    assert largest_difference(none, selective) <= 1e-10


def test_what_lives_is_between_and_foretold(tmp_path: Path) -> None:
    peaks = {}
    for word in WORDS:
        plan = plan_of(Cell("llama", "single", "fp32", word), tmp_path)
        (measured,), (row,) = live_bytes(plan), Forecast().memory(plan).rows
        assert row.total == pytest.approx(measured.total, rel=0.02)
        peaks[word] = measured.total
    print(peaks)
    assert peaks["blocks"] < 0.8 * peaks["selective"] < 0.8 * 0.8 * peaks["none"]


def test_attention_is_not_computed_again_and_half_of_the_products_is(plans: dict[str, Any]) -> None:
    counts = {}
    for word, plan in plans.items():
        with Counted() as counted:
            record_plan(plan, num_steps=1)
        counts[word] = counted.products
    again = {word: counts[word] - counts["none"] for word in WORDS}
    assert again["selective"]["attention"] == 0 < again["blocks"]["attention"]
    assert again["selective"]["products"] == pytest.approx(again["blocks"]["products"] / 2, abs=4)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:The .grad attribute of a Tensor")
def test_beside_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace
    from functools import partialmethod

    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="aot_eager"))
    plan = plan_of(Cell("llama", "single", "fp64", "selective"), tmp_path)
    eager = record_plan(plan, num_steps=1)
    compiled = record_plan(replace(plan, training=replace(plan.training, compile=True)), num_steps=1)
    assert largest_difference(eager, compiled) <= 1e-10
