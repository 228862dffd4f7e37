"""bf16 and fp16 over several ranks: close to one process, and all ranks skip, scale and step as one.

A step that is not finite on one stage or one shard is left out everywhere: the scale is that of all, and nobody's
optimizer counts a step that the others did not take.
"""

from __future__ import annotations

import json
import os
import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from declarative_train.engine.axes import replicate
from declarative_train.engine.step import scale
from declarative_train.engine.step.update import Update
from declarative_train.run.event import StepDone
from tests.engine.made_recipes import DEEP, WAYS, write_data
from tests.engine.runs import checkpoints, go

NUM_STEPS = 8
BAD_STEP, BAD_RANK = 5, 1
START = 1024.0  # torch's 65536 overflows in the first steps, and not on every layout in the same ones
# one rounding is 4e-3 in bf16 and 5e-4 in fp16; after 21 steps of adamw the losses differed by up to 5e-3 and 6e-4
TOLERANCE = {"bf16": 2e-2, "fp16": 2e-3}
PIPELINE = pytest.param("pipeline 2", marks=pytest.mark.long)  # whose stages are those of the products, too
SHARED = ["fsdp 2", "pipeline 2", "pipeline 2 x ddp 2", "pipeline 2 x fsdp 2"]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(scale, "START", START)
    write_data(tmp_path)
    return tmp_path


class Steps:
    """What the update of each step decided on each rank; one of them is made to overflow on one rank, if wanted."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, bad_step: int | None, *, averaged: bool) -> None:
        self._folder = folder
        folder.mkdir()
        update, average = Update.__call__, replicate.average_gradients
        step = 0

        def spoil(gradients: list[torch.Tensor], at: int) -> None:
            if at == bad_step and int(os.environ.get("RANK", str(BAD_RANK))) == BAD_RANK:
                local = gradients[-1].to_local() if hasattr(gradients[-1], "to_local") else gradients[-1]
                local.view(-1)[0] = torch.inf

        def noted(self: Update, *settings: Any) -> Any:
            nonlocal step
            step += 1
            if not averaged:
                spoil(self._optimizers.gradients(), step)
            norm, finite = update(self, *settings)
            assert self._loss_scale is not None
            assert finite is not None
            words = [step, bool(finite), self._loss_scale.factor.item()]
            with (folder / f"{os.getpid()}.jsonl").open("a") as stream:
                print(json.dumps(words), file=stream)
            return norm, finite

        def averaged_spoilt(gradients: list[torch.Tensor], ranks: Any, dtype: torch.dtype | None) -> None:
            spoil(gradients, step + 1)  # before it meets its copies: they must get it from this one
            average(gradients, ranks, dtype)

        monkeypatch.setattr(Update, "__call__", noted)
        if averaged:
            monkeypatch.setattr(replicate, "average_gradients", averaged_spoilt)

    def agreed(self, num_ranks: int) -> dict[int, tuple[bool, float]]:
        """By step: (stepped, the scale after it), the same on every rank."""
        found: dict[int, list[tuple[bool, float]]] = defaultdict(list)
        for path in self._folder.iterdir():
            for step, finite, factor in map(json.loads, path.read_text().splitlines()):
                found[step].append((finite, factor))
        for step, words in found.items():
            assert len(words) == num_ranks, step
            assert len(set(words)) == 1, (step, words)
        return {step: words[0] for step, words in sorted(found.items())}


@pytest.mark.parametrize(
    "way", ["single", *(pytest.param(way, marks=() if "x fsdp" in way else pytest.mark.long) for way in SHARED)]
)
def test_fp16_an_overflow_on_one_rank_is_skipped_by_all(
    directory: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = {
        "training": {"precision": "fp16", "epochs": None, "steps": NUM_STEPS},
        "checkpoint": {"every": "1 step", "keep": 100, "best": None},
    }
    steps = Steps(directory / "steps", monkeypatch, BAD_STEP, averaged=way == "pipeline 2 x ddp 2")
    done = go(directory, DEEP, half, WAYS[way])
    assert done.code == 0
    decided = steps.agreed(WAYS[way].get("layout", {"gpus": 1})["gpus"])
    assert decided == {step: (step != BAD_STEP, START / (1 if step < BAD_STEP else 2)) for step in range(1, 9)}
    found = checkpoints(done.run_dir)
    before, after, next_one = found[BAD_STEP - 1].tensors, found[BAD_STEP].tensors, found[BAD_STEP + 1].tensors
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert found[BAD_STEP - 1].numbers == found[BAD_STEP].numbers  # the counters of adamw
    assert not any(torch.equal(tensor, next_one[name]) for name, tensor in after.items())
    for step, saved in found.items():
        assert saved.state["loss_scale"]["factor"] == decided[step][1]


@pytest.mark.parametrize("way", ["single", PIPELINE, pytest.param("fsdp 2", marks=pytest.mark.long)])
def test_fp16_the_scale_goes_on_after_a_stop(directory: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    half = {"training": {"precision": "fp16"}}
    with monkeypatch.context() as patch:
        straight_steps = Steps(directory / "straight", patch, BAD_STEP, averaged=False)
        straight = go(directory, DEEP, half, WAYS[way])
    num_ranks = WAYS[way].get("layout", {"gpus": 1})["gpus"]
    with monkeypatch.context() as patch:
        Steps(directory / "first", patch, BAD_STEP, averaged=False)
        first = go(directory, DEEP, half, WAYS[way], max_steps=10)
    with monkeypatch.context() as patch:
        later_steps = Steps(directory / "later", patch, None, averaged=False)
        later = go(directory, DEEP, half, WAYS[way], resume=str(first.run_dir))
    assert later.run_dir == first.run_dir
    whole = straight_steps.agreed(num_ranks)
    assert whole[21] == (True, START / 2)
    assert list(later_steps.agreed(num_ranks).values()) == [whole[step] for step in range(11, 22)]
    one, other = (checkpoints(run.run_dir)[21].state["loss_scale"] for run in (straight, later))
    assert one == other == {"factor": START / 2, "good_steps": 16}


def test_the_scale_moves_as_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "GROWTH_STEPS", 4)
    ours = scale.LossScale(torch.device("cpu"))
    theirs = torch.amp.GradScaler("cpu", init_scale=scale.START, growth_interval=4)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    draws, factors = random.Random(0), set()
    for _ in range(100):
        is_finite = draws.random() < 0.8
        theirs.scale(weight.sum()).backward()
        if not is_finite:
            weight.grad = torch.full((1,), torch.inf)
        theirs.step(optimizer)
        theirs.update()
        optimizer.zero_grad()
        ours.update(torch.tensor(is_finite))
        assert ours.factor.item() == theirs.get_scale()
        factors.add(ours.factor.item())
    assert min(factors) < scale.START < max(factors)


def losses_of(directory: Path, way: str, precision: str) -> list[float]:
    run = go(directory, DEEP, {"training": {"precision": precision}}, WAYS[way])
    return [event.loss for event in run.of(StepDone)]


ALONE: dict[str, list[float]] = {}


def alone(directory: Path, precision: str) -> list[float]:
    """The losses of one process, trained once for all ways."""
    if precision not in ALONE:
        ALONE[precision] = losses_of(directory, "single", precision)
    return ALONE[precision]


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "way", ["pipeline 2", *(pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != "pipeline 2")]
)
def test_every_way_is_close_to_one_process(directory: Path, way: str, precision: str) -> None:
    """To one process in the same precision; and that one did compute in half: it is not where float32 is."""
    one, full = alone(directory, precision), alone(directory, "fp32")
    other = losses_of(directory, way, precision)
    assert len(other) == 21
    assert other == pytest.approx(one, rel=TOLERANCE[precision])
    assert full == pytest.approx(one, rel=2 * TOLERANCE[precision])
    assert full[0] != one[0]
