"""Who waits long for data says for what, and gives up in the end: threads, loader processes, shuffle windows."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import _utils

from declarative_train.components.datasets.parquet import ParquetFormat
from declarative_train.data import prefetch
from declarative_train.data.prefetch import PATIENCE, ahead, by_workers
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.spec import BatchSpec, DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.files.file_activity import ActivitySlots, FileActivity, set_file

AWAKE = threading.Event()  # ends threads that are stuck


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is told, by clocks that run faster."""
    monkeypatch.setattr(prefetch, "LOOK_S", 0.05)
    monkeypatch.setattr(prefetch, "CLOSE_S", 0.2)
    monkeypatch.setattr(prefetch, "REPORT_S", 0.3)
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)  # for a loader to end by itself
    found: list[str] = []
    PATIENCE.report, PATIENCE.limit_s = found.append, 1.2
    AWAKE.clear()
    yield found
    PATIENCE.reset()
    AWAKE.set()
    for thread in threading.enumerate():
        if thread.name.startswith("dtrain-"):
            thread.join(10)


def stuck_at(name: str, pause_s: float) -> Callable[[int], int]:
    def make(number: int) -> int:
        set_file(f"part-{number}.parquet")
        if number == 3:
            set_file(name)
            AWAKE.wait(pause_s)
        return number

    return make


def by_two(make: Callable[[int], int], first: int, count: int) -> Iterator[int]:
    return by_workers(make, first, count, 2)


Way = Callable[[Callable[[int], int], int, int], Iterator[int]]
WAYS: list[tuple[Way, str]] = [(ahead, "a thread of this process"), (by_two, r"loader process 1 \(pid \d+\)")]


@pytest.mark.parametrize(("way", "who"), WAYS)
def test_a_slow_read_is_told_and_waited_for(told: list[str], way: Way, who: str) -> None:
    assert list(way(stuck_at("slow.parquet", 0.9), 0, 6)) == list(range(6))
    assert told
    words = rf"the next batch has not come for \d+ s: {who} has been reading slow.parquet for \d+ s"
    assert re.fullmatch(words, told[0])
    assert len(told) <= 2  # again at twice the time only


@pytest.mark.parametrize(("way", "who"), WAYS)
def test_a_read_that_never_ends_ends_the_run(told: list[str], way: Way, who: str) -> None:
    made, begun = way(stuck_at("dead.parquet", 30.0), 0, 6), time.monotonic()
    assert [next(made) for _ in range(3)] == [0, 1, 2]
    words = rf"no data for \d+ s: {who} has been reading dead.parquet for \d+ s; help: .*DTRAIN_TIMEOUT_S"
    with pytest.raises(DataError, match=words):
        next(made)
    assert time.monotonic() - begun < 20
    assert not multiprocessing.active_children()


def test_reading_file_after_file_is_no_standstill(told: list[str]) -> None:
    def make(number: int) -> int:
        for piece in range(10):
            set_file(f"part-{piece}.parquet")
            time.sleep(0.2)
        return number

    assert list(ahead(make, 0, 1)) == [0]
    assert told


def test_what_a_killed_loader_read_is_named(told: list[str]) -> None:
    results = by_workers(stuck_at("hard.parquet", 60.0), 0, 6, 2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    slow = sorted(child.pid or 0 for child in multiprocessing.active_children())[1]
    threading.Timer(0.3, os.kill, (slow, signal.SIGKILL)).start()
    with pytest.raises(DataError, match=r"a loader process was lost: .*; loader process 1 .* reading hard.parquet for"):
        next(results)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_file_of_a_window_is_named(
    tmp_path: Path, spec: Callable[..., DataSpec], told: list[str], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Also where a loader process waits for a thread of its own."""
    for number in range(6):
        pq.write_table(
            pa.table({"x": np.arange(64.0) + 64 * number}), tmp_path / f"{number}.parquet", row_group_size=16
        )
    data = spec(
        source={"type": "parquet", "path": str(tmp_path / "*.parquet")},
        fields={"x": {"columns": ["x"]}},
        shuffle_window=32,
        shuffle_streams=2,
        workers=workers,
    )
    sets = open_sets(data)
    read = ParquetFormat.read

    def slow(form: ParquetFormat, opened: object, *rest: object) -> object:
        found = read(form, opened, *rest)  # type: ignore[arg-type]
        if float(found.column("x")[0].as_py()) == 64 * 4:
            time.sleep(1.0)
        return found

    monkeypatch.setattr(ParquetFormat, "read", slow)
    steps = TrainingBatches(data, BatchSpec(32, 1, 1, 32, 1, 12), 0, sets).iterate(1, 12)
    assert sum(len(batch.sample_ids) for step in steps for batch in step) == 384
    assert told
    assert all("4.parquet" in each for each in told)
    assert all(("loader process" in each) == bool(workers) for each in told)


def test_a_slot_takes_any_name() -> None:
    slots = ActivitySlots(2)
    assert slots.of(0) is None
    for path in ("ä\u20ac.parquet", "x" * 5000, "\U0001f600" * 3000, None):
        slots._write(1, FileActivity(path, 2.5, "a thread" if path else None))
        found = slots.of(1)
        assert found is not None
        assert found[0] == os.getpid()
        assert (found[1].path or "")[-10:] == (path or "")[-10:]
        assert found[1].since == 2.5
    assert slots.of(0) is None
