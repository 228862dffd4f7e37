"""The closed forms of bubble and memory next to the grids that torch's schedules really follow."""

from __future__ import annotations

import re
from functools import cache

import pytest

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.plan.schedule_grid import Grid, schedule_grid

SECONDS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}
ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
CHUNKS = {"1f1b": (1,), "gpipe": (1,), "zbv": (2,), "dualpipev": (2,)}
CASES = [
    (schedule, num_ranks, num_chunks, number)
    for schedule in PIPELINE_SCHEDULES
    for num_ranks in (2, 3, 4, 8)
    for num_chunks in CHUNKS.get(schedule, (2, 4))
    for number in (1, num_ranks - 1, num_ranks, num_ranks + 1, 2 * num_ranks, 4 * num_ranks)
    if PIPELINE_SCHEDULES[schedule].takes(number, num_ranks, num_ranks * num_chunks)
]


@cache
def grid(schedule: str, num_ranks: int, num_chunks: int, number: int) -> Grid:
    return schedule_grid(PIPELINE_SCHEDULES[schedule], num_ranks, num_ranks * num_chunks, number)


def played_s(schedule: str, num_ranks: int, num_chunks: int, number: int) -> float:
    """Every action as soon as all that it waits for is done."""
    orders = [[cell for cell in row if cell] for row in grid(schedule, num_ranks, num_chunks, number)]
    done: dict[tuple[int, str, int], float] = {}
    clocks, places = [0.0] * num_ranks, [0] * num_ranks
    while any(place < len(order) for place, order in zip(places, orders, strict=True)):
        for rank, order in enumerate(orders):
            while places[rank] < len(order):
                parts = [(int(stage), kind, int(at)) for stage, kind, at in ACTION.findall(order[places[rank]])]
                waited = [done.get(each) for part in parts for each in waits_for(part, num_ranks * num_chunks)]
                if None in waited:
                    break
                begun = max([clocks[rank], *(each for each in waited if each is not None)])
                clocks[rank] = begun + sum(SECONDS[kind] for _, kind, _ in parts) / num_chunks
                for stage, kind, at in parts:
                    done[stage, "I" if kind == "B" else kind, at] = clocks[rank]
                places[rank] += 1
    return max(clocks)


def waits_for(part: tuple[int, str, int], num_stages: int) -> list[tuple[int, str, int]]:
    stage, kind, at = part
    if kind == "F":
        return [(stage - 1, "F", at)] if stage else []
    if kind == "W":
        return [(stage, "I", at)]
    return [(stage, "F", at), *([(stage + 1, "I", at)] if stage < num_stages - 1 else [])]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_ramp_is_the_idle_time_of_the_grid(case: tuple[str, int, int, int]) -> None:
    schedule, num_ranks, num_chunks, number = case
    idle_s = played_s(*case) - 3.0 * number
    estimated_s = PIPELINE_SCHEDULES[schedule].ramp_s(num_ranks, num_chunks, number, 1.0, 2.0, 1.0)
    if number < num_ranks * (2 if schedule == "zbv" else 1):
        assert idle_s <= estimated_s + 1e-9
        assert PIPELINE_SCHEDULES[schedule].splits_backward or estimated_s == pytest.approx(idle_s)
    else:
        assert estimated_s == pytest.approx(idle_s)


def most_waiting(row: tuple[str, ...]) -> int:
    """On a rank at a time, until the backward or the weights' half of it is done."""
    now = most = 0
    for cell in row:
        for _, kind, _ in ACTION.findall(cell):
            now += kind == "F"
            most = max(most, now)
            now -= kind in "BW"
    return most


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_waits_for_its_backward_is_as_estimated(case: tuple[str, int, int, int]) -> None:
    schedule, num_ranks, num_chunks, number = case
    row = PIPELINE_SCHEDULES[schedule]
    found = [most_waiting(each) for each in grid(*case)]
    assert found == [row.most_in_flight(rank, num_ranks, num_chunks, number) for rank in range(num_ranks)]
