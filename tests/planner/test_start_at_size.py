"""A model of 8 B on 8 ranks: from the first draw to the end of the first step no rank holds more than its share and
what is gathered for the units at work. On tensors without memory, by the engine that runs; its ranks pretend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train.components.inits.draws import Draws
from declarative_train.engine.collectives import MeshPosition
from declarative_train.engine.engine import Engine
from declarative_train.engine.step.model_preparation import fill
from declarative_train.engine.step.precision import default_dtype
from declarative_train.plan.plan import Plan
from declarative_train.planner.footprint.extrapolate import memory_trace
from declarative_train.planner.footprint.fake_rank import FakeResultsMode, _ranks, fake_step
from declarative_train.planner.footprint.forked_process import in_children
from declarative_train.planner.footprint.live_bytes import GATHERED, PARAMETERS, WHOLE, LiveBytes
from tests.planner.at_size import eight_ranks

RANKS = 8
SLACK = 1 << 20  # norms and tables of positions


def share(plan: Plan) -> int:
    """Elements: `fully_shard` cuts rows."""
    return sum(ceil(item.shape[0] / RANKS) * prod(item.shape[1:]) for item in plan.parameters)


def largest_group(plan: Plan) -> int:
    """Elements that are gathered together: a unit, or what stands before or after them all."""
    sharding = plan.layout.sharding
    assert sharding is not None
    groups = [(unit,) for unit in plan.layout.units] + [sharding.first, sharding.last]
    return max(
        sum(item.num_elements for item in plan.parameters if item.name.startswith(tuple(f"{n}." for n in names)))
        for names in groups
        if names
    )


@contextmanager
def drawing(drawn: list[int]) -> Iterator[None]:
    """Numbers are counted in the place of being written: a tensor without memory has no array."""
    kept = Draws._fill

    def counted(self: Draws, values: torch.Tensor, *_: Any, **__: Any) -> None:
        drawn.append(values.numel())

    Draws._fill = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        Draws._fill = kept  # type: ignore[method-assign]


def started(plan: Plan, rank: int) -> tuple[int, list[int]]:
    """The most bytes that live while a rank is made, and how many numbers each draw gave."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    live, drawn = LiveBytes(), list[int]()
    with ExitStack() as stack:
        stack.enter_context(default_dtype(plan))
        stack.enter_context(_ranks(rank, RANKS))
        place = MeshPosition(plan.layout, torch.device("cpu"))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(FakeResultsMode())  # type: ignore[no-untyped-call]
        stack.enter_context(drawing(drawn))
        stack.enter_context(live)
        Engine(plan, torch.device("cpu"), position=place, fill=fill)
    return live.peak, drawn


@pytest.mark.parametrize("rank", [0, pytest.param(RANKS - 1, marks=pytest.mark.long)])
def test_a_rank_is_made_with_its_share_alone(tmp_path: Path, rank: int) -> None:
    plan = eight_ranks(tmp_path, "blocks")
    ((peak, drawn),) = in_children([lambda: started(plan, rank)])
    assert sum(drawn) <= share(plan)
    assert sum(drawn) > 0.99 * share(plan)  # all but the norms, which are ones
    assert peak <= 4 * (share(plan) + largest_group(plan)) + SLACK
    assert peak >= 4 * share(plan)


def moments(plan: Plan) -> np.ndarray:
    found: np.ndarray = memory_trace(fake_step(plan, 0)).bytes
    return found


@pytest.mark.long
def test_its_first_step_gathers_units_and_never_the_model(tmp_path: Path) -> None:
    """Two at a time in bf16, the one at work and the next, and the gradients of one on their way: bf16 as they come,
    and float32 as they are reduced. (gloo would copy these.)"""
    plan = eight_ranks(tmp_path, "blocks")
    plan = replace(plan, layout=replace(plan.layout, device="cuda"))
    (found,) = in_children([lambda: moments(plan)])
    group = largest_group(plan)
    assert found[:, PARAMETERS].max() <= 4 * share(plan) + SLACK
    assert (found[:, GATHERED] + found[:, WHOLE]).max() <= 2 * (2 * group) + (2 + 4) * group + SLACK
    whole = sum(item.num_elements for item in plan.parameters)
    assert (found[:, GATHERED] + found[:, WHOLE]).max() < whole  # half of it in bf16
