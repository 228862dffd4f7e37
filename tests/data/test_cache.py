"""What is kept of files for the next time: found again, never where the files are others, and bounded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from declarative_train.components.datasets.parquet import ParquetFormat, ParquetTable
from declarative_train.data import shared_sets
from declarative_train.data.spec import DataSpec
from declarative_train.files import cache as files_cache
from declarative_train.files.paths import SourceError

Spec = Callable[..., DataSpec]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "dtrain"


def write(path: Path, values: list[float], group: int = 2) -> str:
    pq.write_table(pa.table({"x": values, "pair": [[value, value] for value in values]}), path, row_group_size=group)
    return str(path)


def test_footers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [write(tmp_path / f"{number}.parquet", [float(number)] * 5) for number in range(4)]
    read: list[object] = []
    footer = ParquetFormat.footer

    def counted(form: ParquetFormat, opened: object) -> dict[str, object]:
        read.append(opened)
        return footer(form, opened)

    monkeypatch.setattr(ParquetFormat, "footer", counted)
    first = ParquetTable(files)
    assert len(read) == 4
    again = ParquetTable(files)
    assert len(read) == 4
    assert not again._opened._open  # no file was opened
    assert again.columns == first.columns
    assert again.columns["pair"].shape == (2,)
    assert (again.num_rows, again.fingerprint) == (first.num_rows, first.fingerprint)
    assert again.size_bytes(["x"]) == first.size_bytes(["x"])
    assert first.size_bytes(["x"])
    assert (again.read(["x"], slice(0, 20))["x"] == np.repeat(np.arange(4.0), 5)).all()
    write(tmp_path / "2.parquet", [9.0] * 7)
    changed = ParquetTable(files)
    assert len(read) == 5
    assert changed.num_rows == 22
    assert changed.fingerprint != first.fingerprint
    assert (changed.read(["x"], slice(10, 17))["x"] == 9).all()
    os.utime(files[2], (1, 1))  # the same size and another date
    assert ParquetTable(files).fingerprint != changed.fingerprint
    assert len(read) == 6


def test_a_file_that_changes_after_its_footer_was_kept_is_told(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.parquet", [1.0] * 5)]
    ParquetTable(files)
    table = ParquetTable(files)
    write(tmp_path / "a.parquet", [2.0] * 9)
    with pytest.raises(SourceError, match=r"a\.parquet changed while it was being read"):
        table.read(["x"], slice(0, 2))
    table = ParquetTable(files)
    assert len(table.read(["x"], slice(0, 4))["x"]) == 4
    write(tmp_path / "a.parquet", [3.0] * 9)
    with pytest.raises(SourceError, match="changed"):  # though it is open
        table.read_once(["x"], slice(4, 9))


def test_statistics_are_measured_once(tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a.parquet", [float(number) for number in range(100)], group=10)
    write(tmp_path / "b.parquet", [float(number) for number in range(100)], group=10)
    read: list[object] = []
    whole = ParquetTable._read_group

    def counted(table: ParquetTable, *given: object) -> object:
        read.append(given)
        return whole(table, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(ParquetTable, "_read_group", counted)

    def describe(**keys: object) -> dict[str, object]:
        shared_sets._latest.clear()
        read.clear()
        made = spec(
            source={"type": "parquet", "path": str(tmp_path / "*.parquet")},
            fields={"x": {"columns": ["x"], "normalize": "standard"}},
            shuffle_window=50,
            **keys,
        )
        assert made.roll is not None
        return made.fields[0].statistics

    first = describe(split={"validation": 0.1})
    assert len(read) >= 20
    assert describe(split={"validation": 0.1}) == first
    assert not read
    assert describe(split={"validation": 0.2}) != first
    assert read
    describe(split={"validation": 0.1}, seed=5)
    assert read
    write(tmp_path / "b.parquet", [-1.0] * 100, group=10)
    assert describe(split={"validation": 0.1}) != first


def test_the_cache_is_bounded_and_may_be_damaged(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [files_cache.cache_path("kind", number) for number in range(8)]
    monkeypatch.setenv("DTRAIN_CACHE_GB", "4.5e-6")
    for number, place in enumerate(places):
        files_cache.save(place, "x" * 998)
        assert place is not None
        os.utime(place, (number, number))
        if number == 3:
            assert files_cache.load(places[0]) is not None  # used: it stays
    assert [place is not None and os.path.exists(place) for place in places] == [
        True, False, False, False, False, True, True, True,
    ]  # fmt: skip
    Path(str(places[7])).write_text("{")
    assert files_cache.load(places[7]) is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    files_cache.save(files_cache.cache_path("kind", 1), 1)
    assert files_cache.load(files_cache.cache_path("kind", 1)) is None
