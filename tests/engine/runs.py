"""Whole runs of small recipes in the tests' own process, and what they leave: events, checkpoints, samples seen.

done = go(directory, recipe, {"parallelism": "ddp", "layout": {"gpus": 2}}, max_steps=5)
again = go(directory, recipe, resume=str(done.run_dir))
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw, ImageFont  # noqa: F401  # these, what tensorboard writes, and modes: once here
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2  # noqa: F401

from declarative_train.data.batch import Batch
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.engine.axes import (
    pipeline,  # noqa: F401
    shard,  # noqa: F401
)
from declarative_train.engine.checkpoints.format import describe_tensors, load_tensors
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.run import rank
from declarative_train.run.event import Event
from declarative_train.run.launch import run
from declarative_train.run.rank_job import default_sinks
from declarative_train.run.sinks import (
    console,  # noqa: F401  # not in each forked rank
    tensorboard,  # noqa: F401  # not in each forked rank
)
from declarative_train.run.sinks.jsonl import read_events
from tests.engine.made_recipes import compiled, merged
from tests.thread_ranks import use_float64

Samples = dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    run_dir: Path
    events: list[Event]

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def go(directory: Path, recipe: Mapping[str, Any], *changes: Mapping[str, Any], **how: Any) -> Done:
    """Run a recipe with changes; the run folder that was written last."""
    for change in changes:
        recipe = merged(recipe, change)
    code = run(compiled(directory, recipe), sinks=default_sinks(quiet=True), **how)
    return Done(code, *newest(directory))


def newest(directory: Path) -> tuple[Path, list[Event]]:
    logs = sorted((directory / "runs" / "made").glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return logs[-1].parent, read_events(logs[-1])


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as it lies on the disk: every tensor, and the small state but for the time that it took."""

    tensors: dict[str, torch.Tensor]
    numbers: dict[str, float]
    state: dict[str, Any]
    is_best: bool


def checkpoints(run_dir: Path) -> dict[int, Saved]:
    """By step. Raises AssertionError when one is torn."""
    whole, torn = CheckpointStore(str(run_dir / "checkpoints")).entries()
    assert not torn
    found = {}
    for entry in whole:
        tensors = {name: torch.zeros(size, dtype=dtype) for name, (size, dtype) in describe_tensors(entry.path).items()}
        load_tensors(entry.path, tensors, alone=True)
        state = {name: value for name, value in entry.manifest["state"].items() if name != "seconds"}
        found[entry.step] = Saved(tensors, entry.manifest["optimizer_numbers"], state, entry.manifest["is_best"])
    return dict(sorted(found.items()))


def last_tensors(run_dir: Path) -> dict[str, torch.Tensor]:
    found = checkpoints(run_dir)
    return found[max(found)].tensors


def assert_same_tensors(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor], **tolerance: float) -> None:
    """To the bit, without a tolerance."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        if tolerance:
            torch.testing.assert_close(tensor, other[name], **tolerance, msg=lambda text, name=name: f"{name}: {text}")
        else:
            assert torch.equal(tensor, other[name]), name


class SampleLog:
    """Which samples each step trains on, in the order of the global batch, from every rank of a run."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()

        class Noted(TrainingBatches):
            def iterate(self, first_step: int, num_steps: int) -> Iterator[list[Batch]]:
                with (folder / f"{os.getpid()}.jsonl").open("a") as stream:
                    for step, batches in enumerate(super().iterate(first_step, num_steps), first_step):
                        ids = [batch.sample_ids.tolist() for batch in batches]
                        print(json.dumps([step, self._dp_rank, ids]), file=stream, flush=True)
                        yield batches

        monkeypatch.setattr(rank, "TrainingBatches", Noted)

    def take(self) -> Samples:
        """Of the runs since the last call; ranks with the same share must have seen the same."""
        seen: dict[int, dict[tuple[int, int], tuple[int, ...]]] = {}
        for path in self._folder.iterdir():
            for line in path.read_text().splitlines():
                step, dp_rank, chunks = json.loads(line)
                for chunk, ids in enumerate(chunks):
                    slot = (chunk, dp_rank)
                    assert seen.setdefault(step, {}).setdefault(slot, tuple(ids)) == tuple(ids), (step, slot)
            path.unlink()
        return {
            step: tuple(number for slot in sorted(slots) for number in slots[slot])
            for step, slots in sorted(seen.items())
        }


def check_resume(folder: Path, recipe: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Compare a run of six steps in the mode `after` with one whose first three steps ran in the mode `before`."""
    with use_float64():
        straight = go(folder, recipe, after)
        first = go(folder, recipe, before, max_steps=3)
        moved = folder / "first"
        shutil.move(first.run_dir, moved)
        again = go(folder, recipe, after, resume=str(moved))
    assert (straight.code, first.code, again.code) == (0, 0, 0)
    found, wanted = (checkpoints(each)[6].tensors for each in (moved, straight.run_dir))
    assert_same_tensors(found, wanted, rtol=1e-9, atol=1e-10)
