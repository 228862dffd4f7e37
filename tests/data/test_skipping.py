"""`on_bad_row: skip`: bad rows are left out or stood in for, alike in every layout, and listed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data import prepared_set
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.skipping import LOG, bad_places, in_words, read_skipped
from declarative_train.data.spec import BatchSpec, DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets

Look = Callable[..., tuple[DataSpec | None, list[Diagnostic]]]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    LOG.to(str(tmp_path / "skipped.jsonl"))
    yield tmp_path / "skipped.jsonl"
    LOG.to(None)


def skipping(look: Look, **keys: object) -> tuple[DataSpec, str]:
    """The data, and the warning."""
    found, diagnostics = look(on_bad_row="skip", **keys)
    assert found is not None, diagnostics
    (warned,) = [each for each in diagnostics if each.code == "D024"]
    return found, warned.message


def test_halving_finds_the_rows_that_fail_alone() -> None:
    bad, asked = {0, 3, 4, 61}, []

    def fails(start: int, stop: int) -> Exception | None:
        asked.append(stop - start)
        return ValueError("x") if bad & set(range(start, stop)) else None

    assert [place for place, _ in bad_places(64, fails)] == [0, 3, 4, 61]
    assert len(asked) < 60


def test_rows_of_csv_that_do_not_parse_or_miss_a_value_are_left_out(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{n},{n / 2},c{n % 3}" for n in range(40)]
    lines[3], lines[7], lines[9], lines[20] = "3,1.5", "7,,c1", "9,oops,c0", "20,10,c2,9"
    path.write_text("x,y,z\n" + "\n".join(lines) + "\n")
    keys: dict[str, object] = {
        "source": {"type": "csv", "path": str(path)},
        "fields": {"y": {"column": "y", "normalize": "standard"}, "x": {"column": "x"}},
    }
    found, (error, *_) = look(**keys)
    assert found is None
    assert "line" in error.message or "row" in error.message
    data, message = skipping(look, **keys)
    assert message.startswith("4 rows skipped: ")
    training = prepare_sets(data)["training"]
    made = training.gather(np.arange(training.num_samples))
    assert made["x"].tolist() == [n for n in range(40) if n not in (3, 7, 9, 20)]
    places = {each.place.split(" of ")[0]: each.why for each in training.left_out}
    assert places.keys() == {"row 4", "row 8", "row 10", "row 21"}
    assert places["row 10"] == "`y` is `oops`, not a number"
    assert places["row 8"] == "`y` is missing"
    assert training.table.place(5).startswith("row 7 ")  # numbers are those of the file


def test_lines_of_jsonl_that_do_not_parse_are_left_out(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"x": n}) for n in range(30)]
    lines[4], lines[11], lines[15], lines[29] = '{"x": ', "[1]", '{"x": "text"}', '{"x": 29'
    path.write_text("\n".join(lines))
    data, message = skipping(look, source={"type": "jsonl", "path": str(path)}, fields={"x": {"column": "x"}})
    assert "4 rows skipped" in message
    training = prepare_sets(data)["training"]
    assert training.gather(np.arange(26))["x"].tolist() == [n for n in range(30) if n not in (4, 11, 15, 29)]
    assert sorted(int(each.place.split()[1]) for each in training.left_out) == [5, 12, 16, 30]


def test_windows_close_around_a_row_that_is_left_out(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "\n".join("NA" if n == 10 else str(n) for n in range(30)) + "\n")
    data, _ = skipping(
        look,
        source={"type": "csv", "path": str(path)},
        fields={"x": {"column": "x"}},
        window={"length": 4, "stride": 1},
    )
    training = prepare_sets(data)["training"]
    rows = training.gather(np.arange(training.num_samples))["x"].astype(int).tolist()
    assert len(rows) == 7 + 16
    assert all(10 not in row and row == list(range(row[0], row[0] + 4)) for row in rows)


def test_values_that_a_field_cannot_take_are_left_out_of_a_held_set(look: Look, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "\n".join(str(n % 7) for n in range(50)) + "\n")
    keys: dict[str, object] = {
        "source": {"type": "csv", "path": str(path)},
        "fields": {"x": {"type": "category", "column": "x", "num_classes": 6}},
    }
    assert look(**keys)[0] is None
    data, message = skipping(look, **keys)
    assert "7 rows skipped" in message
    assert data.sets[0].num_samples == 43


# -- found in a run


def jpeg(number: int, size: int = 8) -> bytes:
    held = BytesIO()
    noise = np.random.default_rng(number).integers(0, 255, (size, size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(held, "PNG")
    return held.getvalue()


BAD = {5: b"no picture", 6: b"", 23: jpeg(23)[:90], 47: jpeg(47)[:-40]}


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    images = [BAD.get(number, jpeg(number)) for number in range(60)]
    table = pa.table({"image": pa.array(images, pa.binary()), "id": np.arange(60)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=5)
    return str(tmp_path / "a.parquet")


def layout(size: int, ranks: int, total: int = 60) -> BatchSpec:
    return BatchSpec(size, ranks, 1, size // ranks, 1, -(-total // size))


@pytest.mark.parametrize("way", [{}, {"shuffle_window": 30, "shuffle_streams": 2}])
@pytest.mark.packs
def test_a_broken_picture_is_stood_in_for_alike_on_every_layout(
    look: Look, pictures: str, log: Path, way: dict[str, object]
) -> None:
    data, _ = skipping(
        look,
        source={"type": "parquet", "path": pictures},
        fields={"image": {"type": "image", "column": "image", "size": 8}, "id": {"column": "id"}},
        transforms=[{"type": "random_flip"}],
        **way,
    )
    whole = np.stack([np.asarray(Image.open(BytesIO(jpeg(n)))).transpose(2, 0, 1) for n in range(60)])

    def read(ranks: int) -> list[dict[int, tuple[bytes, int]]]:
        readers = [TrainingBatches(data, layout(12, ranks), r, open_sets(data)).iterate(1, 10) for r in range(ranks)]
        return [
            {
                int(number): (image.numpy().tobytes(), int(value))
                for batches in step
                for batch in batches
                for number, image, value in zip(
                    batch.sample_ids, batch.tensors["image"], batch.tensors["id"], strict=True
                )
            }
            for step in zip(*readers, strict=True)
        ]

    alone = read(1)
    assert alone == read(2) == read(4)
    assert all(len(step) == 12 for step in alone)
    for step in alone:
        for number, (pixels, value) in step.items():
            shown = np.rint(np.frombuffer(pixels, np.float32).reshape(3, 8, 8) * 255)
            taken = [n for n in range(60) if (whole[n] == shown).all() or (whole[n][..., ::-1] == shown).all()]
            assert len(taken) == 1
            assert taken[0] not in BAD
            assert (taken[0] == number) == (number not in BAD)
            assert way or taken[0] == {5: 7, 6: 7, 23: 24, 47: 48}.get(number, number)  # the next good one
            assert value == taken[0]  # all fields are of one sample
    LOG.write(*prepare_sets(data)["training"].left_out)  # as a run does when it begins
    found = read_skipped(str(log))
    assert sorted(int(each.place.split()[1]) - 1 for each in found) == sorted(BAD)
    assert {each.set for each in found} == {"training"}


@pytest.mark.packs
def test_in_an_evaluation_a_broken_picture_counts_nothing(
    look: Look, pictures: str, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_set, "DECODED_BYTES", 0)  # as a large set, which is not decoded before the run
    data, _ = skipping(
        look,
        source={"type": "parquet", "path": pictures},
        fields={"image": {"type": "image", "column": "image", "size": 8}, "id": {"column": "id"}},
        split={"held": {"type": "last", "fraction": 0.5}},
    )
    for ranks in (1, 2):
        counted: list[int] = []
        for rank in range(ranks):
            batches = EvaluationBatches(data, "held", open_sets(data), batch_size=4, num_ranks=ranks, dp_rank=rank)
            for batch in batches.iterate():
                weight = torch.ones(batch.num_rows) if batch.row_weight is None else batch.row_weight
                assert weight.sum() == batch.num_rows == len(batch.sample_ids)
                counted += batch.tensors["id"][weight > 0].tolist()
        assert sorted(counted) == [n for n in range(30, 60) if n != 47]
    assert "1 row skipped" in in_words([each for each in read_skipped(str(log)) if each.set == "held"])


@pytest.mark.packs
def test_without_skip_a_broken_picture_ends_the_run_with_its_place(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_set, "DECODED_BYTES", 0)
    images = [jpeg(number) for number in range(20)]
    images[15] = images[15][:-30]
    pq.write_table(pa.table({"image": pa.array(images, pa.binary())}), tmp_path / "a.parquet")
    keys: dict[str, object] = {
        "source": {"type": "parquet", "path": str(tmp_path / "a.parquet")},
        "fields": {"image": {"type": "image", "column": "image", "size": 8}},
    }
    data, diagnostics = look(**keys)
    assert data is not None
    assert not diagnostics
    with pytest.raises(DataError, match=r"cannot be decoded.*in row 16 of .*a\.parquet"):
        list(TrainingBatches(data, layout(10, 1, 20), 0, open_sets(data)).iterate(1, 2))


@pytest.mark.parametrize("narrow", [0, 16 << 20])  # a large set of few classes lies in memory in fewer bytes
def test_a_bad_value_of_a_block_shuffled_set_is_stood_in_for(
    look: Look, tmp_path: Path, log: Path, narrow: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared_set, "NARROW_BYTES", narrow)
    values = np.arange(400).astype("f4")
    values[[37, 38, 250]] = [1000, 1000, 1000]
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", row_group_size=20)
    monkeypatch.setattr(prepared_set, "LOOKED_AT_ROWS", 1)
    data, diagnostics = look(
        source={"type": "parquet", "path": str(tmp_path / "a.parquet")},
        fields={"x": {"type": "category", "column": "x", "num_classes": 400}},
        shuffle_window=100,
        shuffle_streams=2,
        on_bad_row="skip",
    )
    assert data is not None, diagnostics
    ways = []
    for ranks in (1, 2):
        readers = [
            TrainingBatches(data, layout(40, ranks, 400), r, open_sets(data)).iterate(1, 10) for r in range(ranks)
        ]
        ways.append(
            [sorted(int(v) for bs in step for b in bs for v in b.tensors["x"]) for step in zip(*readers, strict=True)]
        )
    assert ways[0] == ways[1]
    seen = np.bincount([value for step in ways[0] for value in step], minlength=400)
    wanted = np.ones(400, int)
    wanted[[37, 38, 39, 250, 251]] = [0, 0, 3, 0, 2]  # the next good ones
    assert seen.tolist() == wanted.tolist()
    assert {int(each.place.split()[1]) - 1 for each in read_skipped(str(log))} == {37, 38, 250}
