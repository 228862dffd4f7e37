"""Tables of SQLite files as a source."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from declarative_train.components.data import Table
from declarative_train.components.datasets import DATASETS, arrow_cache
from declarative_train.components.datasets.arrow_cache import ConvertedTable
from declarative_train.files.paths import SourceError


def made(path: Path, *statements: str, rows: Sequence[tuple[object, ...]] = (), into: str = "t") -> Path:
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        if rows:
            file.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        file.commit()
    return path


def opened(*paths: Path, table: str = "t") -> Table:
    return DATASETS.read({"type": "sqlite", "path": [str(path) for path in paths], "table": table}).open()


ROWS = [
    (
        n,
        None if n % 3 else n / 2,
        f"text {n}\nü",
        b"\x89\0%d" % n,
        n if n % 2 else f"word {n}",
        None,
        n if n < 90 else n + 0.5,
    )
    for n in range(100)
]
TYPES = {"n": "int64", "x y": "float64", "s": "object", "b": "bytes", "mixed": "object", "none": "float64"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return made(tmp_path / "a.db", 'CREATE TABLE t (n INT, "x y" REAL, s, b BLOB, mixed, none, late)', rows=ROWS)


def same(table: Table) -> None:
    assert {name: column.dtype for name, column in table.columns.items()} == {**TYPES, "late": "float64"}
    read = table.read(list(table.columns), np.arange(100))
    assert read["n"].tolist() == list(range(100))
    np.testing.assert_array_equal(read["x y"], [np.nan if n % 3 else n / 2 for n in range(100)])
    assert read["s"].tolist() == [row[2] for row in ROWS]
    assert read["b"].tolist() == [row[3] for row in ROWS]
    assert read["mixed"].tolist() == [str(row[4]) for row in ROWS]
    assert np.isnan(read["none"].astype(float)).all()
    assert read["late"].tolist() == [row[6] for row in ROWS]


def test_the_type_of_a_column_is_that_of_its_values(path: Path) -> None:
    same(opened(path))


def test_a_large_one_is_converted(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_cache, "LARGE_BYTES", 10)
    monkeypatch.setattr("declarative_train.packs.tables.sqlite.BLOCK_BYTES", 1000)
    table = opened(path)
    assert isinstance(table, ConvertedTable)
    assert table.blocks is not None
    assert len(table.blocks) > 4
    same(table)
    assert table.place(7).startswith("row 8 of ")


def test_what_stands_in_the_log_of_a_writer_is_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_cache, "LARGE_BYTES", 10)
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        assert opened(path).num_rows == 100
        file.execute("INSERT INTO t (n) VALUES (100)")
        file.commit()
        assert opened(path).num_rows == 101


def test_rows_come_by_rowid_by_key_or_as_a_view_orders_them(tmp_path: Path) -> None:
    rows = [(name, number) for number, name in enumerate(["d", "b", "a", "c"])]
    path = made(tmp_path / "a.db", "CREATE TABLE t (name TEXT, n INT)", "CREATE INDEX both ON t (name, n)", rows=rows)
    made(path, "CREATE VIEW backwards AS SELECT n FROM t ORDER BY n DESC")
    made(path, "CREATE TABLE keyed (name TEXT PRIMARY KEY, n INT) WITHOUT ROWID", rows=rows, into="keyed")
    read = {
        name: opened(path, table=name).read(["n"], slice(0, 4))["n"].tolist() for name in ("T", "backwards", "keyed")
    }
    assert read == {"T": [0, 1, 2, 3], "backwards": [3, 2, 1, 0], "keyed": [2, 1, 3, 0]}


def test_files_are_one_table_of_the_types_of_all(tmp_path: Path) -> None:
    first = made(tmp_path / "a.db", "CREATE TABLE t (x, y)", rows=[(1, None), (2, None)])
    second = made(tmp_path / "b.db", "CREATE TABLE t (y, x)", rows=[("b", 2.5)])
    table = opened(first, second)
    read = table.read(["x", "y"], slice(0, 3))
    assert read["x"].tolist() == [1.0, 2.0, 2.5]
    assert read["y"].tolist() == [None, None, "b"]
    assert table.place(2).startswith("row 1 of ")
    third = made(tmp_path / "c.db", "CREATE TABLE t (x)", rows=[(1,)])
    with pytest.raises(SourceError, match=r"c\.db lacks `y`"):
        opened(first, third)


def test_what_is_wrong_is_told(path: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.db has no table `u`") as caught:
        opened(path, table="u")
    assert caught.value.help == "it has `t`"
    (tmp_path / "text.db").write_text("x,y\n1,2\n")
    with pytest.raises(SourceError, match="is not an SQLite database, it is text"):
        opened(tmp_path / "text.db")
    with pytest.raises(SourceError, match=r"a\.db is not a CSV file, it is an SQLite database") as caught:
        DATASETS.read({"type": "csv", "path": str(path)}).open()
    assert caught.value.help == "the source `sqlite` reads it"
    (tmp_path / "torn.db").write_bytes(path.read_bytes()[:3000])
    with pytest.raises(SourceError, match=r"cannot read `t` of .*torn\.db: "):
        opened(tmp_path / "torn.db")
    mixed = made(tmp_path / "mixed.db", "CREATE TABLE t (x)", rows=[(b"1",), ("a",)])
    with pytest.raises(SourceError, match=r"`x` in `t` of .* holds blobs and other values"):
        opened(mixed)
    large = made(tmp_path / "large.db", "CREATE TABLE t (x)", rows=[(2**60 + 1,), (0.5,)])
    with pytest.raises(SourceError, match=r"cannot read `t` of .*large\.db: .*1152921504606846977"):
        opened(large)
    wrong = made(tmp_path / "wrong.db", "CREATE TABLE t (x)", "INSERT INTO t VALUES (CAST(x'ff' AS TEXT))")
    with pytest.raises(SourceError, match=r"cannot read `t` of .*wrong\.db: .*decode"):
        opened(wrong)
    made(path, "CREATE VIEW broken AS SELECT missing FROM t")
    with pytest.raises(SourceError, match=r"cannot read `broken` of .*no such column: missing"):
        opened(path, table="broken")


@pytest.mark.parametrize("where", ["", " WHERE x < 0"])  # rows without end, and no row in no end of steps
def test_a_view_without_end_is_refused(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("declarative_train.packs.tables.sqlite._VIEW_STEPS", 3_000_000)
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    path = made(tmp_path / "a.db", f"CREATE VIEW t AS {endless}{where}")
    with pytest.raises(SourceError, match=r"the view `t` of .*a\.db has not ended after 4,000,000 steps of SQLite"):
        opened(path)


def test_a_table_may_take_any_number_of_steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("declarative_train.packs.tables.sqlite._VIEW_STEPS", 0)
    monkeypatch.setattr("declarative_train.packs.tables.sqlite._VIEW_STEPS_PER_BYTE", 0)
    monkeypatch.setattr("declarative_train.packs.tables.sqlite._STEPS", 10)
    same(opened(path))
