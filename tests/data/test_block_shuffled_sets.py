"""Sets that are read in blocks: the same samples in every layout, each block read once, memory that does not grow."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from declarative_train.components.datasets.parquet import ParquetTable
from declarative_train.data import rank_batches as made_batches
from declarative_train.data import shared_sets, split_rows
from declarative_train.data.prefetch import Prefetcher
from declarative_train.data.rank_batches import Batch, EvaluationBatches, TrainingBatches
from declarative_train.data.rows import RowShare
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.shuffle_windows import LoadedWindow, RowBuffer, Segments
from declarative_train.data.spec import BatchSpec, DataError, DataSpec
from declarative_train.data.tensor_sets import SampleSet, open_sets

Spec = Callable[..., DataSpec]
SIZES = (700, 1, 333, 1000, 450)  # rows of the files


@pytest.fixture
def files(tmp_path: Path) -> str:
    first = 0
    for number, size in enumerate(SIZES):
        ids = np.arange(first, first + size)
        table = pa.table({"id": ids.astype("f4"), "x": (ids * 2).astype("f4"), "meter": ids // 500})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=64)
        first += size
    return str(tmp_path / "*.parquet")


@pytest.fixture
def block_shuffled(files: str, spec: Spec) -> Spec:
    def make(**keys: object) -> DataSpec:
        return spec(
            source={"type": "parquet", "path": files},
            fields={"x": {"columns": ["x"]}, "id": {"column": "id"}},
            **{"shuffle_window": 600, "seed": 3, **keys},
        )

    return make


def layout(data: DataSpec, size: int, ranks: int, accumulation: int = 1, **keys: bool) -> BatchSpec:
    share = size // (ranks * accumulation)
    return BatchSpec(size, ranks, accumulation, share, 1, -(-data.sets[0].num_samples // size), **keys)


def steps(
    data: DataSpec, sets: dict[str, SampleSet], batch: BatchSpec, first: int, count: int
) -> list[list[list[Batch]]]:
    """By step and rank."""
    readers = [
        TrainingBatches(data, batch, rank, sets).iterate(first, count) for rank in range(batch.data_parallel_size)
    ]
    return [list(each) for each in zip(*readers, strict=True)]


def ids(step: Sequence[Sequence[Batch]]) -> list[int]:
    return sorted(int(number) for rank in step for batch in rank for number in batch.sample_ids)


def batches_of(made: Sequence[Sequence[Sequence[Batch]]]) -> list[Batch]:
    return [batch for step in made for rank in step for batch in rank]


def check_values(step: Sequence[Sequence[Batch]], rows: np.ndarray) -> None:
    for rank in step:
        for batch in rank:
            wanted = torch.from_numpy(rows[batch.sample_ids]).float()
            assert torch.equal(batch.tensors["id"][: batch.num_rows], wanted)
            assert torch.equal(batch.tensors["x"][: batch.num_rows, 0], 2 * wanted)
            assert len(batch.tensors["x"]) >= 1


@pytest.mark.parametrize("split", [{}, {"validation": 0.1}, {"test": {"type": "last", "fraction": 0.3}}])
def test_the_same_samples_in_every_layout(block_shuffled: Spec, split: dict[str, object]) -> None:
    data = block_shuffled(split=split)
    assert data.roll is not None
    assert data.roll.streams > 1
    sets = open_sets(data)
    assert not sets["training"].is_held
    training = sets["training"].prepared.rows
    rows = training.at(np.arange(len(training)))
    num_steps = -(-data.sets[0].num_samples // 48)
    first = [ids(step) for step in steps(data, sets, layout(data, 48, 1), 1, 2 * num_steps)]
    for epoch in (0, 1):
        seen = sorted(number for step in first[epoch * num_steps : (epoch + 1) * num_steps] for number in step)
        assert seen == list(range(data.sets[0].num_samples))
    for ranks, accumulation, begin in [(2, 1, 1), (4, 2, 20), (8, 3, num_steps - 2), (1, 4, num_steps + 5)]:
        batch = layout(data, 48, ranks, accumulation)
        for number, step in enumerate(steps(data, sets, batch, begin, 9), begin):
            assert ids(step) == first[number - 1]  # from the middle of an epoch, in another layout
            check_values(step, rows)
            for rank, made in enumerate(step):
                alone = TrainingBatches(data, batch, rank, sets).step(number)
                for one, other in zip(alone, made, strict=True):
                    assert one.sample_ids.tolist() == other.sample_ids.tolist()
                    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    assert not [each for each in threading.enumerate() if each.name.startswith("dtrain-prefetch")]


@pytest.mark.parametrize(("size", "workers"), [(48, 2), (50, 3), (7, 2)])
def test_loader_processes_make_the_same_batches(block_shuffled: Spec, size: int, workers: int) -> None:
    data = block_shuffled(shuffle_streams=8)
    sets = open_sets(data)
    batch = layout(data, size, 1, pad_to_full=True)
    first = batch.steps_per_epoch - 4
    alone = steps(data, sets, batch, first, 8)
    for one, other in zip(alone, steps(dataclasses.replace(data, workers=workers), sets, batch, first, 8), strict=True):
        for mine, theirs in zip(one[0], other[0], strict=True):
            assert mine.sample_ids.tolist() == theirs.sample_ids.tolist()
            assert mine.num_rows == theirs.num_rows
            assert all(torch.equal(mine.tensors[name], theirs.tensors[name]) for name in mine.tensors)


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_without_rows_are_padded(block_shuffled: Spec, workers: int) -> None:
    data = dataclasses.replace(block_shuffled(), workers=workers)  # 2,484 = 51 x 48 + 36
    sets = open_sets(data)
    for pads in (False, True):
        last = steps(data, sets, layout(data, 48, 2, 8, pad_to_full=pads), 52, 1)[0]
        assert len(ids(last)) == 36
        assert any(batch.num_rows == 0 and len(batch.tensors["x"]) for rank in last for batch in rank)


def test_each_block_is_read_by_one_rank_once(block_shuffled: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    data = block_shuffled(shuffle_window=512, shuffle_streams=4)
    sets = open_sets(data)
    read: Counter[tuple[str, int]] = Counter()
    whole = ParquetTable._read_group

    def counted(table: ParquetTable, path: str, number: int, *rest: object) -> object:
        read[path, number] += 1
        return whole(table, path, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ParquetTable, "_read_group", counted)
    batch = layout(data, 48, 4)
    steps(data, sets, batch, 1, 51)
    assert len(read) == sum(-(-size // 64) for size in SIZES)
    assert sum(read.values()) <= len(read) + 4 + 3 * 3  # ends of streams; the last batch takes of other streams


@pytest.mark.parametrize("window", [None, {"length": 5, "stride": 3}])
def test_a_set_that_is_not_shuffled_reads_each_block_once(
    block_shuffled: Spec, monkeypatch: pytest.MonkeyPatch, window: dict[str, int] | None
) -> None:
    last = {"test": {"type": "last", "fraction": 0.1}}
    data = dataclasses.replace(block_shuffled(window=window, split=last), shuffle=False, roll=None)
    monkeypatch.setattr(shared_sets, "HOLD_BYTES", 0)  # as a set that does not fit
    sets = open_sets(data)
    assert not sets["training"].is_held
    num_samples = data.sets[0].num_samples
    per_epoch = -(-num_samples // 48)
    read: Counter[tuple[str, int]] = Counter()
    whole = ParquetTable._read_group

    def counted(table: ParquetTable, path: str, number: int, *rest: object) -> object:
        read[path, number] += 1
        return whole(table, path, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(ParquetTable, "_read_group", counted)
    one = steps(data, sets, layout(data, 48, 1), 1, 2 * per_epoch)
    assert [number for step in one for number in step[0][0].sample_ids] == [*range(num_samples)] * 2
    if window is None:
        assert set(read.values()) == {2}
    for ranks, accumulation, begin in [(2, 2, 1), (4, 1, per_epoch - 2)]:
        batch = layout(data, 48, ranks, accumulation)
        for number, step in enumerate(steps(data, sets, batch, begin, 5), begin):
            assert ids(step) == ids(one[number - 1])
            for rank, made in enumerate(step):
                alone = TrainingBatches(data, batch, rank, sets).step(number)
                for mine, other in zip(alone, made, strict=True):
                    assert mine.sample_ids.tolist() == other.sample_ids.tolist()
                    assert all(torch.equal(mine.tensors[name], other.tensors[name]) for name in mine.tensors)


def test_windows_of_rows_are_block_shuffled(block_shuffled: Spec) -> None:
    data = block_shuffled(window={"length": 5, "stride": 3}, split={"test": {"type": "last", "fraction": 0.2}})
    assert data.roll is not None
    sets = open_sets(data)
    num_steps = -(-data.sets[0].num_samples // 48)
    seen = []
    for step in steps(data, sets, layout(data, 48, 2), 1, num_steps):
        seen += ids(step)
        for batch in (batch for rank in step for batch in rank):
            starts = batch.sample_ids * 3
            wanted = torch.from_numpy(starts[:, None] + np.arange(5)).float()
            assert torch.equal(batch.tensors["id"][: batch.num_rows], wanted)
    assert sorted(seen) == list(range(data.sets[0].num_samples))


def test_rows_in_another_order_than_the_file_are_not_block_shuffled(block_shuffled: Spec) -> None:
    data = block_shuffled(window={"length": 5, "by": "meter", "sort": "x"}, shuffle_window=200)
    assert data.roll is not None  # sorted as the file is
    assert block_shuffled(shuffle_window=None).roll is None  # held whole
    assert block_shuffled(shuffle_window=3000).roll is None
    assert block_shuffled(shuffle=False).roll is None


def test_evaluations_keep_the_order_of_the_file_and_are_read_once(
    block_shuffled: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = block_shuffled(split={"validation": 0.3})
    sets = open_sets(data)
    assert not sets["validation"].is_held  # its rows lie all over the files
    batches = EvaluationBatches(data, "validation", sets, batch_size=50)
    seen = np.concatenate([batch.tensors["id"].numpy() for batch in batches.iterate()])
    assert (np.diff(seen) > 0).all()
    for ranks, pads in [(1, False), (2, True), (3, False)]:
        for rank in range(ranks):
            share = EvaluationBatches(
                data, "validation", sets, batch_size=50, num_ranks=ranks, dp_rank=rank, pad_to_full=pads
            )
            sets["validation"].kept = {}
            for number, made in enumerate(share.iterate()):
                alone = share.batch(number)
                assert made.sample_ids.tolist() == alone.sample_ids.tolist()
                assert made.num_rows == alone.num_rows
                assert all(torch.equal(made.tensors[name], alone.tensors[name]) for name in made.tensors)
    list(batches.iterate())
    read: list[object] = []
    whole = ParquetTable._read_cached

    def counted(table: ParquetTable, *given: object) -> object:
        read.append(given)
        return whole(table, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ParquetTable, "_read_cached", counted)
    again = EvaluationBatches(data, "validation", sets, batch_size=50)
    assert (np.concatenate([batch.tensors["id"].numpy() for batch in again.iterate()]) == seen).all()
    assert not read  # what a rank takes of a small set stays in memory
    assert len(list(EvaluationBatches(data, "validation", sets, batch_size=50, max_samples=100).iterate())) == 2
    assert read


def test_a_random_set_of_very_many_rows_takes_its_share_of_each_block(
    block_shuffled: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_rows, "LISTED", 1000)
    data = block_shuffled(split={"validation": 0.1, "test": 0.25})
    assert data.roll is not None
    shared_sets._latest.clear()
    prepared = prepare_sets(data)
    rows = {name: each.rows.at(np.arange(len(each.rows))) for name, each in prepared.items()}
    assert all(isinstance(each.rows, RowShare) for each in prepared.values())
    assert [len(each) for each in rows.values()] == [1615, 248, 621]
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(2484))
    for name, each in prepared.items():
        assert (np.diff(rows[name]) > 0).all()
        assert np.array_equal(np.asarray(each.rows.between(100, 200)), rows[name][100:200])
    for begin in range(0, 600, 64):  # whole row groups
        assert 14 <= ((rows["test"] >= begin) & (rows["test"] < begin + 64)).sum() <= 18
    sets = open_sets(data)
    step = steps(data, sets, layout(data, 48, 2), 3, 1)[0]
    check_values(step, rows["training"])


def test_a_share_of_blocks_is_whole_for_any_sizes() -> None:
    for trial in range(50):
        draws = np.random.default_rng(trial)
        starts = np.concatenate([[0], np.cumsum(draws.integers(1, 9, draws.integers(1, 20)))])
        count = int(draws.integers(0, starts[-1] + 1))
        share, rest = (RowShare.of(starts, None, trial, count, others) for others in (False, True))
        assert (len(share), len(rest)) == (count, starts[-1] - count)
        both = np.concatenate([share.between(0, count), rest.between(0, len(rest))])
        assert sorted(both.tolist()) == list(range(int(starts[-1])))
        assert share.before(starts[-1:]).tolist() == [count]


def test_a_bad_value_is_named_when_its_window_is_read(tmp_path: Path, spec: Spec) -> None:
    values = pa.array([float(number) for number in range(200_000)])
    table = pa.table({"x": values, "k": pa.array([None if number == 150_000 else 1 for number in range(200_000)])})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10_000)
    data = spec(
        source={"type": "parquet", "path": str(tmp_path / "a.parquet")},
        fields={"x": {"columns": ["x"]}, "k": {"column": "k", "dtype": "int64"}},
        shuffle_window=50_000,
    )
    reader = TrainingBatches(data, layout(data, 1000, 1), 0, open_sets(data))
    with pytest.raises(DataError, match=r"`k`.*row 150001 of .*a\.parquet"):
        list(reader.iterate(1, 200))
    assert not [each for each in threading.enumerate() if each.name.startswith("dtrain-prefetch")]


def test_windows_use_the_memory_of_those_before_them(
    tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"x": np.arange(4096).astype("f4")}), tmp_path / "even.parquet", row_group_size=64)
    data = spec(
        source={"type": "parquet", "path": str(tmp_path / "even.parquet")},
        fields={"x": {"columns": ["x"]}},
        shuffle_window=512,
        shuffle_streams=4,
    )
    sets = open_sets(data)
    ends: list[int] = []
    asked = RowBuffer.allocate

    def noted(buffer: RowBuffer, count: int) -> int | None:
        found = asked(buffer, count)
        assert found is not None
        ends.append(found + count)
        return found

    monkeypatch.setattr(RowBuffer, "allocate", noted)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # of the threads that read
    monkeypatch.setattr(made_batches, "_GROUP_BYTES", 1)  # a step at a time
    per_epoch = layout(data, 48, 1).steps_per_epoch
    reader = TrainingBatches(data, layout(data, 48, 1), 0, sets).iterate(1, 3 * per_epoch)
    assert sum(1 for _ in reader) == 3 * per_epoch
    assert 512 <= max(ends) <= 2 * 512 + 128 + 256  # in use, made ahead, and what is read for the last time


def test_memory_of_windows_is_given_once_at_a_time() -> None:
    draws, buffer = np.random.default_rng(0), RowBuffer(1000, {"x": ((2,), np.dtype("f4"))})
    held: dict[int, int] = {}
    assert buffer.rows["x"].shape == (1000, 2)
    for turn in range(2000):
        if held and draws.random() < 0.5:
            first = list(held)[int(draws.integers(len(held)))]
            buffer.free(first, held.pop(first))
        elif (found := buffer.allocate(count := int(draws.integers(1, 200)))) is not None:
            held[found] = count
        else:
            free = np.ones(1000, bool)
            for first, size in held.items():
                free[first : first + size] = False
            edges = np.flatnonzero(np.diff(np.concatenate([[0], free, [0]])))
            assert count > (edges[1::2] - edges[::2]).max(initial=0), turn
        taken = np.concatenate([[0], *(np.arange(first, first + size) for first, size in held.items())])[1:]
        assert len(np.unique(taken)) == len(taken)
    for first, size in held.items():
        buffer.free(first, size)
    assert buffer.allocate(1000) == 0
    assert buffer.allocate(1) is None


@pytest.mark.parametrize("length", [None, 5])
def test_windows_without_room_give_the_same(
    block_shuffled: Spec, length: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {} if length is None else {"window": {"length": length, "stride": 2}}
    data = block_shuffled(**keys)
    sets, asked = open_sets(data), RowBuffer.allocate
    whole = steps(data, sets, layout(data, 64, 2), 1, 40)
    for odd in (1, 2):  # no room, and room for every second window
        count = itertools.count(1)
        monkeypatch.setattr(RowBuffer, "allocate", lambda *given: None if next(count) % odd == 0 else asked(*given))  # noqa: B023
        again = steps(data, sets, layout(data, 64, 2), 1, 40)
        assert [ids(each) for each in again] == [ids(each) for each in whole]
        for mine, theirs in zip(batches_of(again), batches_of(whole), strict=True):
            for name, values in mine.tensors.items():
                assert torch.equal(values, theirs.tensors[name])


def test_a_reader_that_is_closed_holds_no_window(block_shuffled: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[LoadedWindow] = weakref.WeakSet()
    begin = LoadedWindow.__init__

    def noted(window: LoadedWindow, *given: object) -> None:
        alive.add(window)
        begin(window, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(LoadedWindow, "__init__", noted)
    data = block_shuffled()
    sets = open_sets(data)
    gc.disable()  # nothing of it may wait for the collector, which knows nothing of arrays' sizes
    try:
        reader = TrainingBatches(data, layout(data, 48, 1), 0, sets).iterate(1, 20)
        for _ in range(10):
            next(reader)
        assert alive
        reader.close()  # type: ignore[attr-defined]
        assert not alive
    finally:
        gc.enable()


def test_rows_of_windows_come_together_as_they_stand_in_the_batch() -> None:
    draws = np.random.default_rng(0)
    for trial in range(200):
        size, parts = int(draws.integers(1, 300)), int(draws.integers(1, 6))
        if trial % 2:  # even segments, as full batches have them, cut anywhere
            length = int(draws.integers(1, 40))
            owner = np.arange(size) // length % parts
            owner[int(draws.integers(0, size)) :] += parts * int(draws.integers(0, 2))
        else:
            owner = draws.integers(0, parts, size)
        numbers = np.empty(size, np.int64)  # those of one owner are neighbours, up to an end that cuts them
        for each in np.unique(owner):
            numbers[owner == each] = each * 1000 + np.arange((owner == each).sum())
        ends = np.unique(np.concatenate([np.arange(2 * parts) * 1000, draws.integers(0, 2000 * parts, 5)]))
        rows, found = draws.random((2000 * parts, 2)).astype(np.float32), np.full((size, 2), np.nan, np.float32)
        seen = []
        segments, owners = Segments.find(numbers).split(ends)
        for each, mine in segments.group(owners):
            listed = np.arange(2000 * parts)[mine.source_rows()]
            assert (listed == mine.list_sources()).all()
            assert (np.searchsorted(ends, listed, side="right") - 1 == each).all()
            mine.copy_to(found, rows[listed])
            seen += listed.tolist()
        assert sorted(seen) == sorted(numbers.tolist())
        assert (found == rows[numbers]).all()


def test_threads_hold_no_more_than_they_may() -> None:
    lock, alive, most = threading.Lock(), 0, 0

    class Made:
        def __init__(self) -> None:
            nonlocal alive, most
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    ahead = Prefetcher(lambda _: Made(), iter([(0, number) for number in range(200)]), lambda _: 10, 50, 2)
    for number in range(200):
        ahead.get((0, number))
        ahead.drop(lambda name, now=number: name[1] < now)  # type: ignore[misc]
    ahead.close()
    assert most <= 6


def test_what_is_not_made_after_a_failure_fails_as_well() -> None:
    def make(number: int) -> int:
        if number == 1:
            raise DataError("torn")
        return number

    ahead = Prefetcher(make, iter(range(9)), lambda _: 1, 9, 1)
    with pytest.raises(DataError, match="torn"):
        ahead.get(5)
    assert ahead.get(0) == 0
    ahead.close()


def test_who_takes_a_window_again_wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = Prefetcher(lambda name: name, iter([(0, number) for number in range(9)]), lambda _: 10, 40, 1)
    for number in range(4):
        ahead.get((0, number))
    until = time.monotonic() + 20
    while (0, 4) not in ahead._made:  # one more, as all others are in use; then the thread waits
        assert time.monotonic() < until
        time.sleep(0.001)
    woken = itertools.count()
    monkeypatch.setattr(ahead._changed, "notify_all", lambda: next(woken))
    for number in [0, 1, 2, 3] * 50:
        assert ahead.get((0, number)) == (0, number)
    assert next(woken) == 0
    monkeypatch.undo()
    for number in range(9):
        assert ahead.get((0, number)) == (0, number)
        ahead.drop(lambda name, now=number: name[1] < now)  # type: ignore[misc]
    ahead.close()
