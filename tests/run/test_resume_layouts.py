"""A run that goes on under another mode or on another number of ranks: the same samples, losses and bookkeeping.

In float64, so that only what truly differs shows. The way from every layout to every other is run by `make matrix`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, permutations
from pathlib import Path
from typing import Any

import pytest

from declarative_train.run.event import CheckpointSaved, EpochDone, EvaluationDone, RunEnded, StepDone
from tests.engine.made_recipes import DEEP, WAYS, merged, write_data
from tests.engine.runs import Done, SampleLog, Samples, assert_same_tensors, checkpoints, go

EXACT = merged(DEEP, {"training": {"precision": "fp64"}})
INSIDE, AT_ITS_END = 10, 14  # stopped inside the second epoch, and at its end
NUM_STEPS = 21
CLOSE = 1e-10

# each kind of layout is left and entered; ranks become more and fewer
ROUND = ("single", "pipeline 2 x ddp 2", "fsdp 2", "single")
SHORT = tuple(zip(ROUND, ROUND[1:], cycle((INSIDE, AT_ITS_END)), strict=False))
ALL = tuple(
    (*pair, stop) for pair in permutations(WAYS, 2) for stop in (INSIDE, AT_ITS_END) if (*pair, stop) not in SHORT
)


def circles(*apart: int) -> Iterator[tuple[str, str, int]]:
    """Every way is left once and entered once for each distance, at both stops by turns. A checkpoint does not know who
    reads it, so that this proves what all pairs do (which `make matrix` runs)."""
    names, stops = list(WAYS), cycle((INSIDE, AT_ITS_END))
    for distance in apart:
        for position, before in enumerate(names):
            yield before, names[(position + distance) % len(names)], next(stops)
        next(stops)  # the other one for the next distance


LONG = tuple(crossing for crossing in circles(3) if crossing not in SHORT)


@dataclass(frozen=True, slots=True)
class Part:
    """A run, or the first part of one."""

    done: Done
    samples: Samples


class Parts:
    """Each first part is run once, whatever goes on from it."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self._log = SampleLog(directory / "samples", monkeypatch)
        self._made: dict[tuple[str, int], Part] = {}

    def of(self, way: str, num_steps: int) -> Part:
        if (way, num_steps) not in self._made:
            done = go(self.directory, EXACT, WAYS[way], max_steps=num_steps)
            assert done.code == 0
            self._made[way, num_steps] = Part(done, self._log.take())
        return self._made[way, num_steps]

    def go_on(self, before: str, num_steps: int, after: str) -> None:
        straight, first = self.of("single", NUM_STEPS), self.of(before, num_steps).done.run_dir
        copy = first.with_name(f"{first.name}-again")
        shutil.copytree(first, copy)
        try:
            done = go(self.directory, EXACT, WAYS[after], resume=str(copy))
            assert (done.code, done.run_dir) == (0, copy)
            assert_goes_on(straight, Part(done, self._log.take()), num_steps)
            assert (copy / "plan.1.json").exists()  # the layout that it began with
        finally:
            shutil.rmtree(copy)


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    directory = tmp_path_factory.mktemp("layouts")
    write_data(directory)
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Parts(directory, monkeypatch)


def assert_goes_on(straight: Part, found: Part, after_step: int) -> None:
    """From `after_step` on, all that `found` saw, told and saved is what the uninterrupted run has."""
    assert list(found.samples) == list(range(after_step + 1, NUM_STEPS + 1))
    assert found.samples == {step: straight.samples[step] for step in found.samples}
    wanted, given = ({event.step: event for event in part.done.of(StepDone)} for part in (straight, found))
    assert list(given) == list(range(1, NUM_STEPS + 1))
    for step, event in given.items():
        assert event.loss == pytest.approx(wanted[step].loss, rel=CLOSE), step
        assert event.grad_norm == pytest.approx(wanted[step].grad_norm, rel=CLOSE), step
        assert (event.lr, event.metrics) == (wanted[step].lr, pytest.approx(wanted[step].metrics)), step
    for kind in (EvaluationDone, EpochDone, RunEnded):
        one, other = straight.done.of(kind), found.done.of(kind)[-len(straight.done.of(kind)) :]
        assert [event.step for event in other] == [event.step for event in one]
        for mine, theirs in zip(one, other, strict=True):
            assert theirs.values == pytest.approx(mine.values, rel=CLOSE)
    saves = [(event.step, event.is_best) for event in found.done.of(CheckpointSaved) if event.step != INSIDE]
    assert saves == [(event.step, event.is_best) for event in straight.done.of(CheckpointSaved)]
    saved, expected = checkpoints(found.done.run_dir), checkpoints(straight.done.run_dir)
    assert list(saved)[-2:] == list(expected)[-2:]
    last, same = saved[NUM_STEPS], expected[NUM_STEPS]
    assert_same_tensors(same.tensors, last.tensors, rtol=1e-9, atol=1e-11)
    assert last.numbers == same.numbers
    assert last.is_best == same.is_best
    assert_close(last.state, same.state, "state")


def assert_close(found: Any, wanted: Any, where: str) -> None:
    """Numbers inside of dicts and lists within CLOSE, everything else equal."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for name, value in wanted.items():
            assert_close(found[name], value, f"{where}.{name}")
    elif isinstance(wanted, list):
        assert len(found) == len(wanted), where
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            assert_close(one, other, f"{where}.{number}")
    else:
        assert found == (pytest.approx(wanted, rel=CLOSE) if isinstance(wanted, float) else wanted), where


def test_the_samples_of_every_way_are_those_of_one_process(parts: Parts) -> None:
    one = parts.of("single", NUM_STEPS).samples
    assert sorted(number for step in range(8, 15) for number in one[step]) == list(range(160))
    assert [len(one[step]) for step in range(8, 15)] == [24] * 6 + [16]


@pytest.mark.parametrize(("before", "after", "stop"), SHORT)
def test_another_layout_goes_on(parts: Parts, before: str, after: str, stop: int) -> None:
    parts.go_on(before, stop, after)


@pytest.mark.long
@pytest.mark.parametrize(("before", "after", "stop"), LONG)
def test_every_layout_is_left_and_entered(parts: Parts, before: str, after: str, stop: int) -> None:
    parts.go_on(before, stop, after)


@pytest.mark.matrix
@pytest.mark.parametrize(("before", "after", "stop"), ALL)
def test_every_layout_goes_on_on_every_other(parts: Parts, before: str, after: str, stop: int) -> None:
    parts.go_on(before, stop, after)
