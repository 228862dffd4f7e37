"""Grid of a pipeline schedule: the action of each rank at each time. The order of a rank's actions is torch's.

`0F1`        stage 0, forward of microbatch 1
`0B1`        its backward
`0I1`, `0W1` halves of the backward: gradients of inputs, gradients of weights
`0F3+3B1`    two actions at the same time

Every action takes one unit of time, and starts as soon as its inputs exist. Empty cells are the pipeline bubble.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

from declarative_train.components.pipeline_schedules import PipelineSchedule

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
Grid = tuple[tuple[str, ...], ...]


def schedule_grid(schedule: PipelineSchedule, num_ranks: int, num_stages: int, num_microbatches: int) -> Grid:
    """Return the grid of a schedule: `grid[rank][time]` is an action, or "" if the rank is idle. All rows have the same
    length."""
    if schedule.torch_class == "Schedule1F1B":
        orders = [_one_f_one_b(rank, num_stages, num_microbatches) for rank in range(num_ranks)]
    else:
        orders = _torch_orders(schedule, num_ranks, num_stages, num_microbatches)
    _check(orders, num_stages, num_microbatches)
    return _align(orders, num_stages)


def bubble(grid: Grid) -> float:
    """Return the pipeline bubble: the share (0 to 1) of the cells of a grid in which a rank is idle."""
    cells = [cell for row in grid for cell in row]
    return sum(not cell for cell in cells) / len(cells) if cells else 0.0


def _one_f_one_b(rank: int, num_stages: int, num_microbatches: int) -> list[str]:
    """Return the actions of a rank in the schedule 1F1B, in the order of torch's `Schedule1F1B._step_microbatches`.

    torch 2.13 also has a table for this schedule. It is not used: on every rank except the first, it is shifted by a
    microbatch.
    """
    warm_up = min(num_microbatches, num_stages - rank)
    forward = [f"{rank}F{number}" for number in range(num_microbatches)]
    backward = [f"{rank}B{number}" for number in range(num_microbatches)]
    order = forward[:warm_up]
    for position in range(num_microbatches):
        order += [backward[position], *forward[warm_up + position : warm_up + position + 1]]
    return order


def _torch_orders(
    schedule: PipelineSchedule, num_ranks: int, num_stages: int, num_microbatches: int
) -> list[list[str]]:
    from torch.distributed.pipelining import schedules

    made = getattr(schedules, schedule.torch_class)
    stubs = [_stub(stage, num_ranks, num_stages) for stage in schedule.stages_of(0, num_ranks, num_stages)]
    is_single = issubclass(made, schedules.PipelineScheduleSingle)
    found = made(stubs[0] if is_single else stubs, num_microbatches, loss_fn=_no_loss, scale_grads=False)
    return [_format_actions(found.pipeline_order[rank]) for rank in range(num_ranks)]


def _stub(stage: int, num_ranks: int, num_stages: int) -> SimpleNamespace:
    """Return an object that the constructors of torch's schedules accept as a pipeline stage. Its rank is always 0,
    because a schedule object contains the actions of all ranks."""
    from torch import nn

    return SimpleNamespace(
        stage_index=stage,
        num_stages=num_stages,
        group_rank=0,
        group_size=num_ranks,
        is_first=stage == 0,
        is_last=stage == num_stages - 1,
        has_backward=True,
        submod=nn.Identity(),
    )


def _no_loss(*_: object) -> None:
    """Do nothing. A schedule gets this function as its loss function: without one, torch puts no backward passes into
    it."""


def _format_actions(actions: Iterable[Any]) -> list[str]:
    """Return the actions of one rank in a pipeline schedule of torch as text, without idle times and communication."""
    found = ["+".join("".join(part) for part in _ACTION.findall(str(action))) for action in actions if action]
    return [cell for cell in found if cell]


def _parts(cell: str) -> list[tuple[int, str, int]]:
    return [(int(stage), kind, int(number)) for stage, kind, number in _ACTION.findall(cell)]


def _check(orders: Sequence[Sequence[str]], num_stages: int, num_microbatches: int) -> None:
    """Check that each stage runs each microbatch exactly once forward and once backward. `orders`: actions of each
    rank. Raises AssertionError."""
    parts = [part for order in orders for cell in order for part in _parts(cell)]
    for kinds in ("F", "BW", "BI"):
        done = sorted((stage, number) for stage, kind, number in parts if kind in kinds)
        assert done == [(stage, number) for stage in range(num_stages) for number in range(num_microbatches)], kinds


def _align(orders: Sequence[Sequence[str]], num_stages: int) -> Grid:
    """Return the grid of a schedule: for each rank a row with its action at each time, "" if it waits. A rank starts
    its next action when the inputs of this action exist. `orders`: actions of each rank, in order."""
    done: set[tuple[int, str, int]] = set()
    rows: list[list[str]] = [[] for _ in orders]
    next_action = [0] * len(orders)
    while any(position < len(order) for position, order in zip(next_action, orders, strict=True)):
        ready = [
            rank
            for rank, order in enumerate(orders)
            if next_action[rank] < len(order) and _can_run(order[next_action[rank]], done, num_stages)
        ]
        assert ready, "this schedule deadlocks"
        for rank, row in enumerate(rows):
            row.append(orders[rank][next_action[rank]] if rank in ready else "")
        for rank in ready:
            done.update(_parts(orders[rank][next_action[rank]]))
            next_action[rank] += 1
    return tuple(tuple(row) for row in rows)


def _can_run(cell: str, done: set[tuple[int, str, int]], num_stages: int) -> bool:
    return all(_has_inputs(part, done, num_stages) for part in _parts(cell))


def _has_inputs(part: tuple[int, str, int], done: set[tuple[int, str, int]], num_stages: int) -> bool:
    stage, kind, number = part
    if kind == "F":
        return stage == 0 or (stage - 1, "F", number) in done
    if kind == "W":
        return (stage, "I", number) in done
    after = stage == num_stages - 1 or any((stage + 1, kind, number) in done for kind in "BI")
    return (stage, "F", number) in done and after
