"""Mixed precision is the same in every mode: gradients, what travels and in which dtype, and never more memory than
float32 takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import get_process_batch
from declarative_train.engine.step.precision import CastParameters
from declarative_train.plan.plan import Plan
from declarative_train.planner.footprint.live_bytes import LiveBytes
from tests.engine.made_recipes import DEEP, WAYS, merged, write_data
from tests.engine.on_ranks import kept_engine, on_ranks
from tests.engine.parity import Recording, record
from tests.engine.watched import Watched, watch
from tests.engine.watched_models import CELLS, planned

# the largest |d| / |reference| of a parameter, by the 2-norm, in the first step; measured: 0.008 and 0.014 in bf16,
# 0.0009 and 0.0016 in fp16. The weights of a mode are the same bits; how many rows are added up at once is not.
TO_SINGLE, TO_FP32 = {"bf16": 0.015, "fp16": 0.002}, {"bf16": 0.03, "fp16": 0.004}
ALIKE = 1e-5  # modes whose ranks add up the same rows at once: the order of float32 sums alone
SHORT_WAYS = ("fsdp 2", "zero bubble 2")
SHORT_CELLS = ("1f1b 2", "fsdp 2")


def shortly(names: Any, short: tuple[str, ...]) -> list[Any]:
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("precision")
    write_data(found)
    return found


@pytest.fixture(scope="module")
def single(directory: Path) -> dict[str, Recording]:
    return {word: _recorded(directory, "single", word) for word in ("fp32", "bf16", "fp16")}


def _recorded(directory: Path, way: str, word: Any) -> Recording:
    return record(directory, merged(merged(DEEP, WAYS[way]), {"training": {"precision": word}}), num_steps=1)


def _distance(reference: Recording, found: Recording) -> float:
    """The largest of all parameters: |d| / |reference|."""
    assert reference.gradients[0].keys() == found.gradients[0].keys()
    return max(
        float(np.linalg.norm(found.gradients[0][name] - item) / np.linalg.norm(item))
        for name, item in reference.gradients[0].items()
    )


@pytest.mark.parametrize("way", shortly([way for way in WAYS if way != "single"], SHORT_WAYS))
def test_every_way_has_the_gradients_of_one_process(directory: Path, single: dict[str, Recording], way: str) -> None:
    for word in ("bf16",) if way in SHORT_WAYS else ("bf16", "fp16"):
        found = _recorded(directory, way, word)
        assert 0 < _distance(single["fp32"], single[word]) < TO_FP32[word]
        assert _distance(single["fp32"], found) < TO_FP32[word]
        assert _distance(single[word], found) < TO_SINGLE[word]


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ddp 2", "fsdp 2"),
        ("pipeline 2", "interleaved 2"),
        ("pipeline 2", "zero bubble 2"),
        ("pipeline 2", "hybrid 2 x 2"),
        ("pipeline 2 x ddp 2", "pipeline 2 x fsdp 2"),
    ],
)
def test_ways_that_add_up_the_same_rows_are_alike(directory: Path, one: str, other: str) -> None:
    assert _distance(_recorded(directory, one, "bf16"), _recorded(directory, other, "bf16")) < ALIKE


@pytest.mark.long
@pytest.mark.parametrize("way", ["ddp 2", "fsdp 2", "pipeline 2 x ddp 2"])
def test_gradients_may_travel_in_bf16(directory: Path, single: dict[str, Recording], way: str) -> None:
    word = {"compute": "bf16", "reduce": "bf16"}
    kept = _recorded(directory, way, "bf16")
    found = _recorded(directory, way, word)
    assert 1e-4 < _distance(kept, found) < 2**-7  # two roundings of 2**-9 each
    assert _distance(single["fp32"], found) < TO_FP32["bf16"]


@pytest.mark.parametrize("cell", shortly(CELLS, SHORT_CELLS))
def test_the_plan_counts_what_is_sent_and_bf16_takes_no_more_memory(tmp_path: Path, cell: str) -> None:
    peaks = {}
    for word, dtype in (("fp32", "float32"), ("bf16", "bfloat16")):
        plan = planned(tmp_path, cell, word)
        ranks = watch(plan)
        peaks[word] = [rank.peak_bytes for rank in ranks]
        if not plan.layout.scatters:  # replicas on the CPU share their parameters
            assert max(rank.total_sent for rank in ranks) == pytest.approx(_estimated(plan), rel=0.01)
        _assert_dtypes(plan, ranks, dtype)
    assert all(half <= full for half, full in zip(peaks["bf16"], peaks["fp32"], strict=True))


def _estimated(plan: Plan) -> int:
    assert plan.estimate is not None
    return sum(each.bytes_sent for each in plan.estimate.transfers)


def _assert_dtypes(plan: Plan, ranks: list[Watched], compute: str) -> None:
    for rank in ranks:
        assert rank.dtypes.get("gathered", {compute}) == {compute}
        for kind in ("scattered", "reduced"):
            assert rank.dtypes.get(kind, {"float32"}) <= {"float32", "float64"}  # counts and norms in double
    if plan.layout.pipeline is not None and not plan.layout.has("replicate"):  # which two ranks on the CPU exchange
        assert all(rank.dtypes["messages"] == {compute} for rank in ranks)


@pytest.mark.long
def test_a_number_of_neighbours_and_chunks_that_are_reduced_each(tmp_path: Path, monkeypatch: Any) -> None:
    """Of gradients too large to be kept whole, what a step sends is counted for each of its chunks."""
    from declarative_train.plan import sharding

    monkeypatch.setattr(sharding, "KEPT_GRADIENT_BYTES", 0)
    plan = planned(tmp_path, "hybrid 2 x 2", "bf16", gradient_accumulation_steps=2)
    assert plan.layout.sharding is not None
    assert not plan.layout.sharding.keeps_gradients
    ranks = watch(plan)
    assert max(rank.total_sent for rank in ranks) == pytest.approx(_estimated(plan), rel=0.01)


def test_parameters_are_cast_once_and_gradients_add_up_in_float32() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LSTM(4, 3, batch_first=True))
    own = dict(module.named_parameters())
    cast = CastParameters([module, module[0]], torch.bfloat16)
    x = torch.randn(2, 5, 4)
    with cast:
        assert {item.dtype for item in module.parameters()} == {torch.bfloat16}
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                module(x)[0].float().square().sum().backward()
    assert all(item is own[name] for name, item in module.named_parameters())
    flat = dict(zip(module[1]._flat_weights_names, module[1]._flat_weights, strict=True))
    assert all(item is own[f"1.{name}"] for name, item in flat.items())
    assert {item.grad.dtype for item in own.values() if item.grad is not None} == {torch.float32}


class Order(TorchDispatchMode):
    """The products of matrices in a backward, and the large messages between ranks, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if name == "aten::mm" and torch._C._current_graph_task_id() >= 0:
            self.found.append("product")
        elif name == "c10d::allreduce_" and args[0][0].nbytes > 1 << 18:
            self.found.append("message")
        return func(*args, **(kwargs or {}))


def _ordered(plan: Plan) -> list[str]:
    with kept_engine(plan) as engine:
        batches = TrainingBatches(plan.data, get_process_batch(plan), engine.dp_rank, open_sets(plan.data))
        order = Order()
        with order:
            engine.step(1, batches.step(1), num_rows=plan.batch.global_batch_size, lr_factor=1.0, measure=False)
    return order.found


@pytest.mark.parametrize("precision", shortly(["fp32", "bf16"], ("bf16",)))
def test_ddp_sends_while_backward_goes_on(tmp_path: Path, precision: str) -> None:
    """Casts come first in the forward: left to torch, they would be the last of the backward, and all buckets too."""
    plan = planned(tmp_path, "ddp 2", precision)
    found = on_ranks(plan, _ordered, plan)[0]
    assert found.count("message") >= 2
    assert found[found.index("message") :].count("product") > found.count("product") / 2


def test_gradients_in_half_precision_are_let_go_as_backward_goes_on() -> None:
    width, depth = 64, 8
    module = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(depth)))
    live = LiveBytes()
    for item in module.parameters():
        item.grad = torch.zeros_like(item)
        live.add(item.grad)
    with CastParameters([module], torch.bfloat16):
        for copy in module.parameters():
            live.add(copy.detach())
        before, loss = live.total, module(torch.randn(1, width, dtype=torch.bfloat16)).float().sum()
        with live:
            loss.backward()
    one = width * width * torch.bfloat16.itemsize
    assert one <= live.peak - before < 4 * one  # the gradient, itself in float32, and rows
