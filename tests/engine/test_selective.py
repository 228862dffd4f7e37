"""Selective activation checkpointing keeps attention and every second product: memory and work lie between none and all
of the blocks computed again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.engine.step.selective import ATTENTION, PRODUCTS
from declarative_train.plan.plan import Plan
from declarative_train.planner.footprint import forecast
from declarative_train.planner.footprint.forecast import Forecast
from tests.engine.live_bytes import live_bytes
from tests.engine.parity import largest_difference, record_plan
from tests.planner.cells import Cell
from tests.planner.measure import compiled, plan_of

FORMS = {
    "none": "none",
    "selective": "selective",
    "products kept": "{policy: selective, keep: [products]}",
    "attention kept": "{policy: selective, keep: [attention]}",
    "blocks": "blocks",
    "every second": "{policy: blocks, every: 2}",
}


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
    for word, text in FORMS.items():
        folder = tmp_path / word.replace(" ", "_")
        folder.mkdir()
        found[word] = plan_of(Cell("llama", "single", "fp64", text), folder)
    return found


def test_gradients_are_the_same(plans: dict[str, Any]) -> None:
    none, *others = (record_plan(plan, num_steps=1) for plan in plans.values())
    for other in others:
        assert largest_difference(none, other) <= 1e-10


def test_what_lives_is_between_and_foretold(tmp_path: Path) -> None:
    peaks = {}
    for word, text in FORMS.items():
        plan = plan_of(Cell("llama", "single", "fp32", text), tmp_path)
        (measured,), (row,) = live_bytes(plan), Forecast().memory(plan).rows
        assert row.total == pytest.approx(measured.total, rel=0.02)
        peaks[word] = measured.total
    print(peaks)
    assert peaks["blocks"] < 0.8 * peaks["selective"] < 0.8 * 0.8 * peaks["none"]
    assert peaks["blocks"] < 0.9 * peaks["every second"] < 0.9 * 0.9 * peaks["none"]
    assert peaks["blocks"] < peaks["attention kept"] < peaks["selective"] < peaks["products kept"] < peaks["none"]


def test_attention_is_not_computed_again_and_half_of_the_products_is(plans: dict[str, Any]) -> None:
    counts = {}
    for word, plan in plans.items():
        with Counted() as counted:
            record_plan(plan, num_steps=1)
        counts[word] = counted.products
    again = {word: counts[word] - counts["none"] for word in FORMS}
    assert again["selective"]["attention"] == 0 < again["blocks"]["attention"]
    assert again["selective"]["products"] == pytest.approx(again["blocks"]["products"] / 2, abs=4)
    assert again["attention kept"] == Counter(products=again["blocks"]["products"])
    assert again["products kept"] == Counter(attention=again["blocks"]["attention"])
    for kind, number in again["blocks"].items():
        assert again["every second"][kind] == number / 2


def staged(folder: Path) -> Plan:
    return plan_of(Cell("llama", "1f1b 2", "fp32", FORMS["every second"]), folder)


def test_of_a_pipeline_the_same_blocks_are_computed_again(tmp_path: Path) -> None:
    """They are counted in the model, not in each stage."""
    plan = staged(tmp_path)
    kept = [unit for unit in plan.layout.units if unit not in plan.training.recomputation.units(plan.layout.units)]
    assert [unit.rpartition(".")[2] for unit in kept] == ["1", "3"]


@pytest.mark.long
def test_what_lives_in_a_pipeline_is_foretold(tmp_path: Path) -> None:
    plan = staged(tmp_path)
    (one, other), rows = live_bytes(plan), Forecast().memory(plan).rows
    for measured, row in zip((one, other), rows, strict=True):
        assert row.total == pytest.approx(measured.total, rel=0.06)


@pytest.mark.long
@pytest.mark.parametrize(("layers", "every"), [(24, 3), (27, 2)])
def test_a_long_chain_is_carried_on_by_so_many_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layers: int, every: int
) -> None:
    cell = Cell("llama", "single", "fp32", f"{{policy: blocks, every: {every}}}")
    text = cell.recipe("", str(tmp_path)).replace("layers: 4", f"layers: {layers}")
    (tmp_path / "long.yaml").write_text(text.replace("global_batch_size: 16", "global_batch_size: 64"))
    plan = compiled(tmp_path / "long.yaml", "long")
    carried = Forecast().memory(plan).rows
    monkeypatch.setattr(forecast, "LONG", 10**6)
    monkeypatch.setattr(forecast, "MOST_CALLS", 10**6)
    assert Forecast().memory(plan).rows[0].total == pytest.approx(carried[0].total, rel=1e-3)


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
