"""Mixtures: each source has its share of every stretch of positions, whoever reads the samples."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.mixture import Schedule, list_mixture, shares
from declarative_train.data.rank_batches import Batch, TrainingBatches
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import SampleSet, open_sets

Spec = Callable[..., DataSpec]
Look = Callable[..., tuple[DataSpec | None, list[Diagnostic]]]
SIZES = {"web": 700, "code": 90, "books": 260}
WEIGHTS = {"web": 0.5, "code": 0.3, "books": 0.2}


@pytest.mark.parametrize(
    "parts", [[7, 3], [1, 1, 1], [5, 1, 1, 1, 1], [1], [10**6, 1], [700, 90, 260, 33, 5, 1], [2**31, 2**31 + 7, 5]]
)
def test_every_source_has_its_share_of_every_stretch(parts: list[int]) -> None:
    schedule, size = Schedule(parts), 20_000
    source, turn = schedule.assign(np.arange(size))
    for number, part in enumerate(parts):
        before = np.concatenate([[0], np.cumsum(source == number)])
        exact = np.arange(size + 1) * (part / sum(parts))
        assert np.abs(before - exact).max() < 2
        assert (before[1:] - before[:-1] <= 1).all()
        assert (turn[source == number] == np.arange(before[-1])).all()
        assert (schedule.count_before(number, np.arange(size + 1)) == before).all()


def test_after_all_parts_the_counts_are_exact_however_far_it_is() -> None:
    schedule = Schedule([7, 3, 90])
    far = np.asarray([100 * 10**12])
    assert [int(schedule.count_before(number, far)[0]) for number in range(3)] == [7 * 10**12, 3 * 10**12, 90 * 10**12]
    source, turn = schedule.assign(far + np.arange(100))
    near = schedule.assign(np.arange(100))
    assert (source == near[0]).all()
    assert (turn == near[1] + np.asarray([7, 3, 90])[source] * 10**12).all()


def test_shares_are_the_weights_to_the_last_digit_or_the_sizes() -> None:
    assert shares([0.7, 0.3], [1, 1]) == [7, 3]
    assert shares([2, 1, 1.5], [1, 1, 1]) == [4, 2, 3]
    assert shares([None, None], [60, 20]) == [3, 1]
    odd = shares([0.1234567890123, 1.0], [1, 1])
    assert odd[0] / sum(odd) == pytest.approx(0.1234567890123 / 1.1234567890123, rel=1e-8)


# -- sets


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    found, first = {}, 0
    for name, size in SIZES.items():
        ids = np.arange(first, first + size)
        pq.write_table(pa.table({"id": ids.astype("f4"), "own": ids}), tmp_path / f"{name}.parquet", row_group_size=32)
        found[name] = str(tmp_path / f"{name}.parquet")
        first += size
    return found


@pytest.fixture
def mixed(files: dict[str, str], spec: Spec) -> Spec:
    def make(*, weighted: bool = True, **keys: object) -> DataSpec:
        members = {
            name: {"source": {"type": "parquet", "path": path}, **({"weight": WEIGHTS[name]} if weighted else {})}
            for name, path in files.items()
        }
        return spec(source={"type": "mix", "of": members}, fields={"id": {"column": "id"}}, seed=3, **keys)

    return make


def layout(data: DataSpec, size: int, ranks: int, accumulation: int = 1) -> BatchSpec:
    share = size // (ranks * accumulation)
    return BatchSpec(size, ranks, accumulation, share, 1, -(-data.sets[0].num_samples // size))


def read(
    data: DataSpec, sets: dict[str, SampleSet], batch: BatchSpec, first: int, count: int
) -> list[list[list[Batch]]]:
    readers = [
        TrainingBatches(data, batch, rank, sets).iterate(first, count) for rank in range(batch.data_parallel_size)
    ]
    return [list(each) for each in zip(*readers, strict=True)]


def ids(step: Sequence[Sequence[Batch]]) -> list[int]:
    return sorted(int(number) for rank in step for batch in rank for number in batch.sample_ids)


def source_of(sample: int, data: DataSpec) -> str:
    ends = np.cumsum([member.num_samples for member in data.mix])
    return data.mix[int(np.searchsorted(ends, sample, side="right"))].name


@pytest.mark.parametrize("way", [{}, {"shuffle_window": 200, "shuffle_streams": 4}, {"shuffle": False}])
def test_the_samples_of_a_step_are_the_same_in_every_layout(mixed: Spec, way: dict[str, object]) -> None:
    data = mixed(**way)
    assert data.is_block_shuffled == ("shuffle_window" in way)
    sets = open_sets(data)
    values = np.arange(sum(SIZES.values()))
    whole = read(data, sets, layout(data, 40, 1), 1, 60)
    for step in whole:
        for batch in step[0]:
            rows = values[batch.sample_ids % data.sets[0].num_samples]
            assert torch.equal(batch.tensors["id"][: batch.num_rows], torch.from_numpy(rows).float())
    for ranks, accumulation, first in ((2, 1, 1), (4, 2, 1), (2, 4, 33)):
        parts = read(data, sets, layout(data, 40, ranks, accumulation), first, 60 - first + 1)
        assert [ids(step) for step in parts] == [ids(step) for step in whole[first - 1 :]]


@pytest.mark.parametrize("way", [{}, {"shuffle_window": 200, "shuffle_streams": 4}])
def test_a_source_gives_all_of_its_samples_before_one_comes_again(mixed: Spec, way: dict[str, object]) -> None:
    data = mixed(**way)
    size = data.sets[0].num_samples
    batches = TrainingBatches(data, layout(data, 40, 1), 0, open_sets(data))
    drawn: dict[str, list[int]] = {name: [] for name in SIZES}
    for epoch in range(3):
        for sample in batches.sample_indices(epoch, np.arange(size)).tolist():
            drawn[source_of(sample, data)].append(sample)
    for name, samples in drawn.items():
        assert len(samples) / (3 * size) == pytest.approx(WEIGHTS[name], abs=2 / (3 * size))
        own, passes = SIZES[name], len(samples) // SIZES[name]
        turns = [samples[turn * own : (turn + 1) * own] for turn in range(passes)]
        for turn in turns:
            assert len(set(turn)) == own
        assert all(one != other for one, other in pairwise(turns))
    assert len(drawn["code"]) > 10 * SIZES["code"]


def test_without_weights_each_sample_comes_once_per_epoch(mixed: Spec) -> None:
    data = mixed(weighted=False)
    batches = TrainingBatches(data, layout(data, 40, 1), 0, open_sets(data))
    for epoch in range(2):
        assert sorted(batches.sample_indices(epoch, np.arange(1050))) == list(range(1050))
    assert [each[3] for each in list_mixture(data)] == ["1.00"] * 3


def test_workers_make_the_same_batches(mixed: Spec) -> None:
    for way in ({}, {"shuffle_window": 200, "shuffle_streams": 4}):
        alone = mixed(**way)
        batch = layout(alone, 40, 2)
        wanted = [ids(step) for step in read(alone, open_sets(alone), batch, 20, 12)]
        helped = mixed(workers=2, **way)
        assert [ids(step) for step in read(helped, open_sets(helped), batch, 20, 12)] == wanted


def test_a_late_step_is_found_as_soon_as_an_early_one(mixed: Spec) -> None:
    data = mixed()
    batches = TrainingBatches(data, layout(data, 40, 1), 0, open_sets(data))

    def seconds(step: int) -> float:
        begin = time.perf_counter()
        batches.step(step)
        return time.perf_counter() - begin

    batches.step(1)
    early, late = (min(seconds(step + number) for number in range(5)) for step in (10, 1_000_000))
    assert late < 20 * early + 0.01


def test_ranks_of_a_block_shuffled_mixture_share_the_files(spec: Spec, tmp_path: Path) -> None:
    """Each reads its streams, and those of its neighbours where they meet; not all of the files."""
    from declarative_train.components.datasets.block_table import BlockTable

    for name, size in (("a", 4000), ("b", 2000)):
        ids = np.arange(size).astype("f4")
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{name}.parquet", row_group_size=20)
    members = {name: {"source": {"type": "parquet", "path": str(tmp_path / f"{name}.parquet")}} for name in "ab"}
    data = spec(
        source={"type": "mix", "of": members},
        fields={"id": {"column": "id"}},
        shuffle_window=1200,
        shuffle_streams=16,
    )
    whole, read_by = BlockTable._read_group, Counter[int]()
    for rank in range(2):
        sets = open_sets(data)

        def counting(self: BlockTable, *args: object, rank: int = rank, **keys: object) -> object:
            read_by[rank] += 1
            return whole(self, *args, **keys)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BlockTable, "_read_group", counting)
            for _ in TrainingBatches(data, layout(data, 80, 2), rank, sets).iterate(1, 75):
                pass
    assert max(read_by.values()) < 0.8 * 300, read_by


@pytest.mark.packs
def test_windows_and_packed_texts_hold_rows_of_one_source(spec: Spec, tmp_path: Path) -> None:
    for name, letter, size in (("a", "a", 230), ("b", "b", 90)):
        (tmp_path / f"{name}.txt").write_text(letter * size)
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{letter * (3 + n % 5)}"}}\n' for n in range(size)))
    texts = {name: {"source": {"type": "text", "path": str(tmp_path / f"{name}.txt")}} for name in "ab"}
    rows = {name: {"source": {"type": "jsonl", "path": str(tmp_path / f"{name}.jsonl")}} for name in "ab"}
    windows = spec(
        source={"type": "mix", "of": texts}, fields={"t": {"column": "tokens"}}, window={"length": 8, "stride": 8}
    )
    packed = spec(
        source={"type": "mix", "of": rows},
        fields={"t": {"type": "tokens", "column": "text", "tokenizer": "bytes", "length": 16, "pack": "best_fit"}},
    )
    assert [member.num_samples for member in windows.mix] == [28, 11]
    for data in (windows, packed):
        first = data.mix[0].num_samples
        training = prepare_sets(data)["training"]
        assert training.num_samples == sum(member.num_samples for member in data.mix)
        made = training.gather(np.arange(training.num_samples))["t"]
        letters = [{value for value in row.tolist() if value in (97, 98)} for row in made]
        assert letters == [{97}] * first + [{98}] * (len(made) - first)


@pytest.mark.packs
def test_a_picture_that_comes_twice_in_an_epoch_is_changed_otherwise(spec: Spec, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name, count in (("few", 3), ("many", 30)):
        (tmp_path / name / "x").mkdir(parents=True)
        for number in range(count):
            noise = draw.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / name / "x" / f"{number}.png")
    data = spec(
        source={
            "type": "mix",
            "of": {
                name: {"source": {"type": "image_folder", "path": str(tmp_path / name)}, "weight": 1}
                for name in ("few", "many")
            },
        },
        fields={"image": {"type": "image", "column": "image", "size": 12}},
        transforms=[{"type": "random_crop", "size": 12, "padding": 4}],
    )
    sets = open_sets(data)
    whole = [batch for step in read(data, sets, layout(data, 6, 1), 1, 5) for batch in step[0]]
    shown: dict[int, list[torch.Tensor]] = {}
    for batch in whole:
        for number, image in zip(batch.sample_ids.tolist(), batch.tensors["image"], strict=True):
            shown.setdefault(number % 33, []).append(image)
    again = shown[0]
    assert len(again) >= 4
    assert len({image.numpy().tobytes() for image in again}) >= 3
    parts = read(data, sets, layout(data, 6, 2), 3, 3)
    pixels = {
        int(number): image
        for rank in parts[0]
        for batch in rank
        for number, image in zip(batch.sample_ids, batch.tensors["image"], strict=True)
    }
    for number, image in zip(whole[2].sample_ids.tolist(), whole[2].tensors["image"], strict=True):
        assert torch.equal(pixels[number], image)


def test_sets_are_cut_from_each_source_or_from_one(mixed: Spec) -> None:
    data = mixed(split={"validation": 0.1, "of_code": {"type": "last", "fraction": 0.2, "of": "code"}})
    assert [(each.name, each.num_samples) for each in data.sets] == [
        ("training", 1050 - 18 - 70 - 26 - 9),
        ("validation", 70 + 9 + 26),
        ("of_code", 18),
    ]
    rows = prepare_sets(data)["of_code"].rows.at(np.arange(18))
    assert rows.tolist() == list(range(700 + 72, 790))
    assert [member.num_samples for member in data.mix] == [630, 63, 234]


def codes(found: tuple[DataSpec | None, list[Diagnostic]]) -> list[str]:
    assert found[0] is None
    return [f"{each.code} {each.span.path}: {each.message}" for each in found[1]]


def test_what_is_wrong_with_a_mixture_is_said_at_the_source(files: dict[str, str], look: Look, tmp_path: Path) -> None:
    web = {"source": {"type": "parquet", "path": files["web"]}}
    gone = {"source": {"type": "parquet", "path": str(tmp_path / "gone.parquet")}}
    (found,) = codes(look(source={"type": "mix", "of": {"web": web, "code": gone}}, fields={"id": {"column": "id"}}))
    assert "data.source.of.code.source.path" in found
    (found,) = codes(
        look(
            source={"type": "mix", "of": {"web": web, "code": {"source": {"type": "parquet", "path": files["code"]}}}},
            fields={"id": {"column": "id"}},
            split={"validation": {"type": "random", "fraction": 0.1, "of": "books"}},
        )
    )
    assert "there is no source `books`: its sources are `web`, `code`" in found
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"name": ["a", "b"]}), other)
    (found,) = codes(
        look(
            source={"type": "mix", "of": {"web": web, "other": {"source": {"type": "parquet", "path": str(other)}}}},
            fields={"id": {"column": "id"}},
        )
    )
    assert "the sources have no column in common" in found
