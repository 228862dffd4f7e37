"""Replay of a pipeline schedule with the seconds of each stage. Every action starts when its rank is free and its
inputs have arrived. With many microbatches a schedule repeats itself, so it is replayed only with two smaller numbers
of microbatches, from which the time is extrapolated."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.plan.schedule_grid import schedule_grid

MOST_ACTIONS = 8_000  # limit of a replay; a larger pipeline uses a formula for its slowest stage
_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds of a stage for one microbatch.

    forward_s    forward
    backward_s   whole backward
    weights_s    the part of the backward that computes gradients of weights
    onward_s     sending the output to the next stage
    back_s       sending the gradient of the input to the previous stage"""

    forward_s: float
    backward_s: float
    weights_s: float
    onward_s: float = 0.0
    back_s: float = 0.0


def pipeline_s(schedule: str, num_ranks: int, stages: Sequence[StageTime], num_microbatches: int) -> float:
    """Return the seconds from the first forward to the end of the last backward of a step in the pipeline. `schedule`:
    its name in the recipe. `stages`: the seconds of each stage."""
    few, more = 2 * len(stages), 4 * len(stages)
    if 3 * more * len(stages) > MOST_ACTIONS:
        return _closed_form_s(schedule, num_ranks, stages, num_microbatches)
    if num_microbatches <= more:
        return _replay_s(schedule, num_ranks, stages, num_microbatches)
    short_s, long_s = (_replay_s(schedule, num_ranks, stages, number) for number in (few, more))
    return long_s + (num_microbatches - more) * (long_s - short_s) / (more - few)


def _closed_form_s(schedule: str, num_ranks: int, stages: Sequence[StageTime], num_microbatches: int) -> float:
    chunks = len(stages) // num_ranks
    slowest = max(stages, key=lambda each: each.forward_s + each.backward_s)
    hop_s = max(each.onward_s + each.back_s for each in stages)
    forward_s, backward_s = chunks * slowest.forward_s, chunks * (slowest.backward_s + hop_s)
    ramp_s = PIPELINE_SCHEDULES[schedule].ramp_s(
        num_ranks, chunks, num_microbatches, forward_s, backward_s, chunks * slowest.weights_s
    )
    return num_microbatches * (forward_s + backward_s) + ramp_s


def _replay_s(schedule: str, num_ranks: int, stages: Sequence[StageTime], num_microbatches: int) -> float:
    free = [0.0] * num_ranks
    done: dict[tuple[int, str, int], float] = {}
    last = len(stages) - 1
    for rank, parts in _actions(schedule, num_ranks, len(stages), num_microbatches):
        start, taken = free[rank], 0.0
        for stage, kind, number in parts:
            each = stages[stage]
            if kind == "F":
                if stage:
                    start = max(start, done[stage - 1, "F", number] + stages[stage - 1].onward_s)
                taken += each.forward_s
            elif kind == "W":
                taken += each.weights_s
            else:
                if stage < last:
                    start = max(start, done[stage + 1, "B", number] + stages[stage + 1].back_s)
                taken += each.backward_s - (each.weights_s if kind == "I" else 0.0)
        free[rank] = start + taken
        for stage, kind, number in parts:
            done[stage, "B" if kind == "I" else kind, number] = free[rank]
    return max(free)


Part = tuple[int, str, int]  # stage, kind of action, microbatch


@lru_cache(maxsize=256)
def _actions(
    schedule: str, num_ranks: int, num_stages: int, num_microbatches: int
) -> tuple[tuple[int, tuple[Part, ...]], ...]:
    """Return the schedule of a pipeline as pairs (rank, actions that run on it at the same time). Each pair comes after
    all pairs for which it waits."""
    grid = schedule_grid(PIPELINE_SCHEDULES[schedule], num_ranks, num_stages, num_microbatches)
    return tuple(
        (rank, tuple((int(stage), kind, int(number)) for stage, kind, number in _ACTION.findall(cell)))
        for cells in zip(*grid, strict=True)
        for rank, cell in enumerate(cells)
        if cell
    )
