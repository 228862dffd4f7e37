"""Tar archives and text that roll: each sample once per epoch, the same in every layout, the files of a rank read once,
however many they are."""

from __future__ import annotations

import io
import os
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train.data import prepared_set
from declarative_train.data.rank_batches import Batch, TrainingBatches
from declarative_train.data.shuffle_windows import RowBuffer
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import SampleSet, open_sets
from declarative_train.packs.tables import safetensors, tar
from declarative_train.packs.tables.tar import TarDataset, TarTable
from declarative_train.packs.text import text_files
from declarative_train.packs.text.text_files import ByteTable

pytest.importorskip("PIL")
Spec = Callable[..., DataSpec]
FIELDS = {"image": {"type": "image", "column": "png", "size": [4, 4]}, "label": {"type": "category", "column": "cls"}}


def picture(number: int) -> bytes:
    from PIL import Image

    colour = number % 256, number // 256 % 256, number // 65536
    with io.BytesIO() as file:
        Image.new("RGB", (4, 4), colour).save(file, "png")
        return file.getvalue()


def write_archives(folder: Path, sizes: list[int]) -> str:
    number = 0
    for archive, size in enumerate(sizes):
        with tarfile.open(folder / f"{archive:05}.tar", "w") as file:
            for _ in range(size):
                for ending, content in (("png", picture(number)), ("cls", f"{number % 3}".encode())):
                    member = tarfile.TarInfo(f"{number:06}.{ending}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
                number += 1
    return str(folder / "*.tar")


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tar, "_BLOCK_BYTES", 1_000)
    monkeypatch.setattr(tar, "_MOST_ROWS", 200)
    return write_archives(tmp_path, [100, 1, 57, 203, 90, 149])


def layout(data: DataSpec, size: int, ranks: int) -> BatchSpec:
    return BatchSpec(size, ranks, 1, size // ranks, 1, -(-data.sets[0].num_samples // size))


def steps(data: DataSpec, sets: dict[str, SampleSet], batch: BatchSpec, first: int, count: int) -> list[list[Batch]]:
    """All batches of each step."""
    ranks = range(batch.data_parallel_size)
    readers = [TrainingBatches(data, batch, rank, sets).iterate(first, count) for rank in ranks]
    return [[made for rank in each for made in rank] for each in zip(*readers, strict=True)]


def ids(step: list[Batch]) -> list[int]:
    return sorted(int(number) for batch in step for number in batch.sample_ids)


def shown(batch: Batch) -> list[int]:
    colours = (batch.tensors["image"][: batch.num_rows, :, 1, 2].double() * 255).round().long()
    return (colours * torch.tensor([1, 256, 65536])).sum(1).tolist()


def test_archives_roll_alike_in_every_layout(spec: Spec, archives: str) -> None:
    source = {"type": "tar", "path": archives}
    data = spec(source=source, fields=FIELDS, split={"validation": 0.1}, shuffle_window=160, seed=3)
    assert data.roll is not None
    assert data.roll.streams > 1
    sets = open_sets(data)
    rows = sets["training"].prepared.rows
    per_epoch = -(-data.sets[0].num_samples // 24)
    first = [ids(step) for step in steps(data, sets, layout(data, 24, 1), 1, 2 * per_epoch)]
    for epoch in (0, 1):
        seen = [number for step in first[epoch * per_epoch : (epoch + 1) * per_epoch] for number in step]
        assert sorted(seen) == list(range(data.sets[0].num_samples))
    assert first[0] != first[per_epoch]
    for ranks, begin in ((2, 1), (4, 7), (8, per_epoch - 3)):
        for number, step in enumerate(steps(data, sets, layout(data, 24, ranks), begin, 6), begin):
            assert ids(step) == first[number - 1]
            for batch in step:
                wanted = rows.at(batch.sample_ids[: batch.num_rows])
                assert shown(batch) == wanted.tolist()
                assert batch.tensors["label"][: batch.num_rows].tolist() == (wanted % 3).tolist()


def test_what_is_small_is_shuffled_whole(spec: Spec, archives: str, tmp_path: Path) -> None:
    for keys in ({}, {"shuffle_window": 10_000}, {"shuffle": False}):
        assert spec(source={"type": "tar", "path": archives}, fields=FIELDS, **keys).roll is None
    (tmp_path / "a.txt").write_bytes(bytes(range(256)) * 10)
    source, window = {"type": "text", "path": str(tmp_path / "a.txt")}, {"length": 9, "stride": 8}
    assert spec(source=source, fields={"x": {"column": "tokens", "dtype": "int64"}}, window=window).roll is None


def test_ranks_read_the_archives_once(spec: Spec, archives: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = spec(source={"type": "tar", "path": archives}, fields=FIELDS, shuffle_window=200, shuffle_streams=8)
    sets = open_sets(data)
    table = TarDataset(path=archives).open()
    read = 0
    whole = TarTable._bytes

    def counted(table: TarTable, path: str, begin: int, end: int) -> bytes:
        nonlocal read
        read += end - begin
        return whole(table, path, begin, end)

    monkeypatch.setattr(TarTable, "_bytes", counted)
    table.read(["png", "cls"], slice(0, table.num_rows))
    once, read = read, 0
    batch = layout(data, 24, 8)
    steps(data, sets, batch, 1, batch.steps_per_epoch - 1)  # the last, partial batch is read by row
    assert 0.9 * once <= read <= 1.2 * once


def test_neighbours_in_an_archive_are_read_together(archives: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = TarDataset(path=archives).open()
    calls: list[tuple[int, int]] = []
    whole = TarTable._bytes

    def noted(table: TarTable, path: str, begin: int, end: int) -> bytes:
        calls.append((begin, end))
        return whole(table, path, begin, end)

    monkeypatch.setattr(TarTable, "_bytes", noted)
    read = table.read(["png", "cls"], slice(0, 100))
    assert len(calls) == 1
    assert read["png"].tolist() == [picture(number) for number in range(100)]
    rows = np.asarray([599, 3, 3, 101, 350])
    calls.clear()
    assert table.read(["cls", "key"], rows)["key"].tolist() == [f"{row:06}" for row in rows]
    assert len(calls) == 4
    assert table.size_bytes(["cls"]) == 600
    assert table.blocks is not None
    assert {0, 100, 101, 158, 361, 451, 600} <= set(table.blocks.tolist())


CUTS: dict[str, slice | int] = {
    "past": slice(0, 16),
    "next": slice(1, None),
    "third": slice(None, None, 3),
    "few": slice(2, 5),
    "last": 16,
}


@pytest.mark.parametrize(
    ("split", "narrow"), [({}, True), ({}, False), ({"test": {"type": "last", "fraction": 0.2}}, True)]
)
def test_text_rolls_by_stretches(
    spec: Spec, tmp_path: Path, split: dict[str, object], narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`narrow`: in memory as the bytes that they are, as what is large."""
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 512)
    monkeypatch.setattr(prepared_set, "NARROW_BYTES", 0 if narrow else 16 << 20)
    made = RowBuffer.__init__
    held: set[np.dtype[np.generic]] = set()

    def noted(buffer: RowBuffer, *given: Any) -> None:
        made(buffer, *given)
        held.update(rows.dtype for rows in buffer.rows.values())

    monkeypatch.setattr(RowBuffer, "__init__", noted)
    whole = np.random.default_rng(0).integers(0, 256, 16 * 1247 + 17, np.uint8)  # 26 steps of 48 samples
    for number, part in enumerate(np.split(whole, [3_000, 3_001, 12_000])):
        (tmp_path / f"{number}.txt").write_bytes(part.tobytes())
    data = spec(
        source={"type": "text", "path": str(tmp_path / "*.txt")},
        fields={"x": {"column": "tokens"}}
        | {name: {"column": "tokens", "rows": _said(cut)} for name, cut in CUTS.items()},
        window={"length": 17, "stride": 16},
        split=split,
        shuffle_window=400,
        shuffle_streams=8,  # as many as ranks
    )
    assert data.roll is not None
    sets = open_sets(data)
    per_epoch = -(-data.sets[0].num_samples // 48)
    read = 0
    slices = ByteTable._range

    def counted(table: ByteTable, start: int, stop: int) -> np.ndarray:
        nonlocal read
        read += stop - start
        return slices(table, start, stop)

    monkeypatch.setattr(ByteTable, "_range", counted)
    first = steps(data, sets, layout(data, 48, 1), 1, per_epoch)
    once, read = read, 0
    assert sorted(number for step in first for number in ids(step)) == list(range(data.sets[0].num_samples))
    for number, step in enumerate(steps(data, sets, layout(data, 48, 8), 1, per_epoch)):
        assert ids(step) == ids(first[number])
        for batch in step:
            wanted = torch.from_numpy(whole[batch.sample_ids[:, None] * 16 + np.arange(17)]).long()
            assert torch.equal(batch.tensors["x"][: batch.num_rows], wanted)
            for name, cut in CUTS.items():
                assert torch.equal(batch.tensors[name][: batch.num_rows], wanted[:, cut]), name
    assert held == {np.dtype("uint8" if narrow else "int64")}
    assert split or read <= 1.2 * once  # where no partial batch needs windows of other ranks' streams


def _said(cut: slice | int) -> str | int:
    if isinstance(cut, int):
        return cut
    numbers = ["" if each is None else str(each) for each in (cut.start, cut.stop, cut.step)]
    return ":".join(numbers if cut.step else numbers[:2])


def test_safetensors_roll(tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file = pytest.importorskip("safetensors.torch").save_file
    for number, (first, last) in enumerate(((0, 40), (40, 41), (41, 114))):
        ids = torch.arange(first, last)
        save_file({"id": ids, "x": torch.stack([ids.float(), 2.0 * ids], 1)}, tmp_path / f"{number}.safetensors")
    monkeypatch.setattr(safetensors, "_BLOCK_BYTES", 200)
    fields = {"x": {"column": "x"}, "id": {"column": "id", "dtype": "int64"}}
    source = {"type": "safetensors", "path": str(tmp_path)}
    assert spec(source=source, fields=fields).roll is None  # held
    data = spec(source=source, fields=fields, shuffle_window=60)
    assert data.roll is not None
    seen: list[int] = []
    for rank in range(2):
        for chunks in TrainingBatches(data, BatchSpec(12, 2, 1, 6, 1, 10), rank, open_sets(data)).iterate(1, 10):
            for batch in chunks:
                ids = batch.tensors["id"][: batch.num_rows]
                assert torch.equal(batch.tensors["x"][: batch.num_rows, 1], 2.0 * ids)
                seen += ids.tolist()
    assert sorted(seen) == list(range(114))


@pytest.mark.long
def test_ten_thousand_archives(spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tar, "_MOST_ROWS", 2_000)
    path = write_archives(tmp_path, [4] * 10_000)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard[1]), hard[1]))
    try:
        data = spec(source={"type": "tar", "path": path}, fields=FIELDS, shuffle_window=4_000)
        assert data.roll is not None
        sets = open_sets(data)
        batch = layout(data, 64, 8)
        opened: set[str] = set()
        whole = TarTable._bytes

        def noted(table: TarTable, path: str, begin: int, end: int) -> bytes:
            opened.add(path)
            return whole(table, path, begin, end)

        monkeypatch.setattr(TarTable, "_bytes", noted)
        for number, chunks in enumerate(TrainingBatches(data, batch, 5, sets).iterate(1, batch.steps_per_epoch)):
            for made in chunks:
                assert shown(made) == made.sample_ids[: made.num_rows].tolist()
            if number % 100 == 0:
                assert len(os.listdir("/proc/self/fd")) < 250
        assert 1_200 < len(opened) < 1_600  # an eighth of them, the ends of streams, and the last batch
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, hard)
