"""Batches: the same samples travel together whatever the layout; each rank takes its slots; what is short is padded."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from declarative_train.data.order import locate, samples_until
from declarative_train.data.prepared_set import HOLD_BYTES
from declarative_train.data.rank_batches import Batch, EvaluationBatches, TrainingBatches
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import HeldSet, ReadSet, SampleSet, open_sets

Spec = Callable[..., DataSpec]


def small(spec: Spec, rows: int = 53, **keys: object) -> DataSpec:
    return spec(
        source={"type": "synthetic", "kind": "classification", "rows": rows, "features": 3},
        fields={"x": {"column": "x"}, "y": {"column": "y"}},
        **keys,
    )


def layout(
    size: int, ranks: int, accumulation: int = 1, microbatches: int = 1, *, rows: int = 53, **keys: bool
) -> BatchSpec:
    share = size // (ranks * accumulation * microbatches)
    return BatchSpec(size, ranks, accumulation, share, microbatches, -(-rows // size), **keys)


def ids(batches: list[Batch]) -> list[int]:
    return [int(sample) for batch in batches for sample in batch.sample_ids]


def test_a_global_batch_is_the_same_in_every_layout(spec: Spec) -> None:
    data = small(spec)
    sets = open_sets(data)
    steps: dict[int, set[int]] = {}
    for ranks in (1, 2, 4):
        for accumulation in (1, 2):
            batch = layout(16, ranks, accumulation)
            readers = [TrainingBatches(data, batch, rank, sets) for rank in range(ranks)]
            for step in range(1, 13):
                taken = [ids(reader.step(step)) for reader in readers]
                flat = sorted(sample for each in taken for sample in each)
                assert len(set(flat)) == len(flat)
                assert steps.setdefault(step, set(flat)) == set(flat)
                for reader, each in zip(readers, taken, strict=True):
                    assert len(reader.step(step)) == accumulation
                    assert ids(next(reader.iterate(step, 1))) == each
    for epoch in range(3):
        seen = [sample for step in range(1 + 4 * epoch, 5 + 4 * epoch) for sample in steps[step]]
        assert sorted(seen) == list(range(53))
    assert steps[1] != steps[5]


def test_slots_are_as_the_batch_spec_says(spec: Spec) -> None:
    data = dataclasses.replace(small(spec), shuffle=False)
    sets = open_sets(data)
    batch = layout(16, 2, 2)  # chunks of 8, 4 rows for each rank
    for rank in (0, 1):
        for step in (1, 2):
            base = 16 * (step - 1)
            for chunk, each in enumerate(TrainingBatches(data, batch, rank, sets).step(step)):
                assert each.sample_ids.tolist() == [base + chunk * 8 + rank * 4 + row for row in range(4)]
                assert each.row_weight is None


def test_the_tensors_are_those_of_the_samples(spec: Spec) -> None:
    data = small(spec)
    sets = open_sets(data)
    for batches in TrainingBatches(data, layout(16, 2, 2), 1, sets).iterate(1, 9):
        for batch in batches:
            wanted = sets["training"].gather(batch.sample_ids)
            for name, tensor in batch.tensors.items():
                assert torch.equal(tensor[: batch.num_rows], wanted[name])
                assert tensor.is_contiguous()


def test_a_partial_batch_fills_the_first_slots_and_the_rest_is_padded(spec: Spec) -> None:
    data = small(spec)  # 53 = 3 x 16 + 5
    sets = open_sets(data)
    sizes = [
        [batch.num_rows for batch in TrainingBatches(data, layout(16, 2, 2), rank, sets).step(4)] for rank in (0, 1)
    ]
    assert sizes == [[4, 0], [1, 0]]
    for rank in (0, 1):
        first, second = TrainingBatches(data, layout(16, 2, 2), rank, sets).step(4)
        assert first.row_weight is None
        assert second.row_weight is not None
        assert second.row_weight.tolist() == [0.0]
        assert len(second.sample_ids) == 0
        assert len(second.tensors["x"]) == 1
    for rank in (0, 1):
        for batch in TrainingBatches(data, layout(16, 2, 2, pad_to_full=True), rank, sets).step(4):
            assert len(batch.tensors["x"]) == 4
            weight = [1.0] * batch.num_rows + [0.0] * (4 - batch.num_rows)
            assert (batch.row_weight is None and weight == [1.0] * 4) or batch.row_weight.tolist() == weight  # type: ignore[union-attr]
            everything = sets["training"].gather(np.arange(53))["x"]
            assert all((row == everything).all(1).any() for row in batch.tensors["x"])


def test_the_last_batch_may_be_dropped_and_a_set_may_be_smaller_than_a_batch(spec: Spec) -> None:
    data = small(spec)
    batch = dataclasses.replace(layout(16, 1), steps_per_epoch=3)
    reader = TrainingBatches(data, batch, 0, open_sets(data))
    assert [len(ids(each)) for each in reader.iterate(1, 7)] == [16] * 7
    assert [locate(step, batch, data.set("training").num_samples).epoch for step in (3, 4)] == [0, 1]
    tiny = small(spec, rows=5)
    reader = TrainingBatches(tiny, layout(16, 2, rows=5), 1, open_sets(tiny))
    assert [len(ids(each)) for each in reader.iterate(1, 3)] == [0, 0, 0]


def test_a_run_that_goes_on_takes_what_would_have_come_next(spec: Spec) -> None:
    data = small(spec)
    sets = open_sets(data)
    whole = [ids(each) for each in TrainingBatches(data, layout(16, 2), 0, sets).iterate(1, 12)]
    for first in (2, 4, 5, 9):
        rest = TrainingBatches(data, layout(16, 2), 0, sets).iterate(first, 13 - first)
        assert [ids(each) for each in rest] == whole[first - 1 :]


def test_a_set_that_is_read_gives_the_same_batches(spec: Spec) -> None:
    data = small(spec, split={"validation": 0.2})
    held = open_sets(data)
    read = unheld(held)
    for rank in (0, 1):
        pairs = zip(
            TrainingBatches(data, layout(16, 2, 2, rows=42), rank, held).iterate(1, 8),
            TrainingBatches(data, layout(16, 2, 2, rows=42), rank, read).iterate(1, 8),
            strict=True,
        )
        for one, other in pairs:
            for first, second in zip(one, other, strict=True):
                assert same(first, second)


def unheld(sets: dict[str, SampleSet]) -> dict[str, SampleSet]:
    found: dict[str, SampleSet] = {}
    for name, each in sets.items():
        assert isinstance(each, HeldSet)
        found[name] = ReadSet(dataclasses.replace(each.prepared, held=None))
    return found


def same(one: Batch, other: Batch) -> bool:
    return (
        one.num_rows == other.num_rows
        and np.array_equal(one.sample_ids, other.sample_ids)
        and (one.row_weight is None) == (other.row_weight is None)
        and one.tensors.keys() == other.tensors.keys()
        and all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)
    )


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("size", [4, 7, 100])
def test_evaluation_sees_every_sample_once_in_order(spec: Spec, ranks: int, size: int) -> None:
    data = small(spec)
    sets = open_sets(data)
    made = [
        list(EvaluationBatches(data, "training", sets, batch_size=size, num_ranks=ranks, dp_rank=rank).iterate())
        for rank in range(ranks)
    ]
    assert len({len(each) for each in made}) == 1
    order = [int(s) for batches in zip(*made, strict=True) for batch in batches for s in batch.sample_ids]
    assert order == list(range(53))
    for batch in (batch for each in made for batch in each):
        rows = len(batch.tensors["x"])
        assert rows == max(batch.num_rows, 1)
        assert (batch.row_weight is None) == (batch.num_rows == rows)
    padded = EvaluationBatches(data, "training", sets, batch_size=size, num_ranks=ranks, pad_to_full=True)
    assert all(len(batch.tensors["x"]) == size for batch in padded.iterate())


def test_evaluation_of_a_part_is_spread_over_the_set(spec: Spec) -> None:
    data = small(spec)
    sets = open_sets(data)
    reader = EvaluationBatches(data, "training", sets, batch_size=4, max_samples=10)
    assert reader.num_samples == 10
    assert ids(list(reader.iterate())) == [number * 53 // 10 for number in range(10)]
    assert EvaluationBatches(data, "training", sets, batch_size=4, max_samples=99).num_samples == 53


def test_evaluation_of_a_set_that_is_read(spec: Spec) -> None:
    data = small(spec)
    sets = open_sets(data)
    pairs = zip(
        EvaluationBatches(data, "training", sets, batch_size=6, num_ranks=2, dp_rank=1).iterate(),
        EvaluationBatches(data, "training", unheld(sets), batch_size=6, num_ranks=2, dp_rank=1).iterate(),
        strict=True,
    )
    assert all(same(one, other) for one, other in pairs)


@pytest.mark.packs
def test_a_large_text_is_read_by_position(spec: Spec, tmp_path: Path) -> None:
    """More than is held in memory (a sparse file): nothing is read but the windows asked for."""
    path = tmp_path / "large.txt"
    with path.open("wb") as file:
        file.write(b"abcdefgh")
        file.truncate(HOLD_BYTES + 10_000)
        file.seek(HOLD_BYTES + 9_992)
        file.write(b"ABCDEFGH")
    data = spec(
        source={"type": "text", "path": str(path)},
        fields={"tokens": {"column": "tokens", "rows": ":-1"}, "next": {"column": "tokens", "rows": "1:"}},
        window={"length": 8, "stride": 1},
    )
    sets = open_sets(data)
    assert isinstance(sets["training"], ReadSet)
    assert data.sets[0].num_samples == HOLD_BYTES + 10_000 - 7
    found = sets["training"].gather(np.asarray([data.sets[0].num_samples - 1, 0]))
    assert found["tokens"].dtype == torch.int64
    assert bytes(found["tokens"][0].tolist()) == b"ABCDEFG"
    assert bytes(found["next"][1].tolist()) == b"bcdefgh"
    batch = BatchSpec(64, 2, 1, 32, 1, data.sets[0].num_samples // 64)
    two = [next(TrainingBatches(data, batch, rank, sets).iterate(10_000_000, 1))[0] for rank in (0, 1)]
    assert len(set(two[0].sample_ids.tolist()) | set(two[1].sample_ids.tolist())) == 64


def test_the_samples_of_the_first_steps_of_a_run() -> None:
    batch = BatchSpec(100, 1, 1, 100, 1, steps_per_epoch=10)
    assert [samples_until(step, batch, 950) for step in (0, 1, 9, 10, 11, 20)] == [0, 100, 900, 950, 1050, 1900]
    dropping = BatchSpec(100, 1, 1, 100, 1, steps_per_epoch=9)
    assert [samples_until(step, dropping, 950) for step in (0, 1, 9, 10, 18)] == [0, 100, 900, 1000, 1800]
