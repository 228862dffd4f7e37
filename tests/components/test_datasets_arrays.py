"""Parquet, NumPy, text and made data: rows by number, across files and row groups, mapped where possible."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from declarative_train.components.data import Table
from declarative_train.components.datasets.npy import NpyDataset
from declarative_train.components.datasets.parquet import ParquetDataset
from declarative_train.components.datasets.synthetic import SyntheticDataset
from declarative_train.files.paths import SourceError
from declarative_train.packs.text.text_files import TextDataset


def write_parquet(path: Path, start: int, stop: int, group: int = 7) -> None:
    numbers = list(range(start, stop))
    table = pa.table(
        {
            "n": numbers,
            "half": pa.array([n / 2 for n in numbers], pa.float32()),
            "word": [f"w{n}" if n % 3 else None for n in numbers],
            "vector": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.float32(), 2)),
            "code": pa.array([f"c{n % 2}" for n in numbers]).dictionary_encode(),
        }
    )
    parquet.write_table(table, path, row_group_size=group)


@pytest.fixture
def rows(tmp_path: Path) -> Table:
    write_parquet(tmp_path / "a.parquet", 0, 20)
    write_parquet(tmp_path / "b.parquet", 20, 31)
    return ParquetDataset(path=str(tmp_path / "*.parquet")).open()


def test_parquet_rows_cross_row_groups_and_files(rows: Table) -> None:
    assert rows.num_rows == 31
    names = ["n", "half", "word", "vector", "code"]
    everything = rows.read(names, slice(0, 31))
    assert everything["n"].tolist() == list(range(31))
    assert everything["word"][:4].tolist() == [None, "w1", "w2", None]
    assert everything["vector"].shape == (31, 2)
    wanted = np.asarray([30, 0, 7, 7, 19, 20, 6])
    for name, values in rows.read(names, wanted).items():
        assert values.tolist() == everything[name][wanted].tolist()
    assert rows.read(["n"], slice(5, 25))["n"].tolist() == list(range(5, 25))
    assert rows.read(["n"], slice(5, 5))["n"].tolist() == []
    assert rows.place(20).startswith("row 1 of")


def test_parquet_is_read_in_a_forked_process(rows: Table) -> None:
    rows.read(["n"], slice(0, 3))
    child = os.fork()
    if not child:
        good = rows.read(["n", "half"], np.asarray([30, 1]))["n"].tolist() == [30, 1]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_parquet_over_a_url_and_a_file_that_is_none(tmp_path: Path) -> None:
    import fsspec

    write_parquet(tmp_path / "a.parquet", 0, 9)
    with fsspec.open("memory://pq/a.parquet", "wb") as file:
        file.write((tmp_path / "a.parquet").read_bytes())
    assert ParquetDataset(path="memory://pq/a.parquet").open().read(["n"], slice(7, 9))["n"].tolist() == [7, 8]
    (tmp_path / "bad.parquet").write_bytes(b"a,b\n1,2\n")
    with pytest.raises(SourceError, match="is not a Parquet file, it is text"):
        ParquetDataset(path=str(tmp_path / "bad.parquet")).open()


def test_npz_arrays_are_mapped_and_others_are_no_columns(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.float32).reshape(6, 4)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(6), words=np.asarray(list("abcdef")), mean=np.zeros(4), one=3)
    table = NpyDataset(path=str(tmp_path / "a.npz")).open()
    assert {name: (column.dtype, column.shape) for name, column in table.columns.items()} == {
        "x": ("float32", (4,)),
        "y": ("int64", ()),
        "words": ("object", ()),
    }
    assert table.left_out == {"mean": "it has 4 rows where most have 6", "one": "it is a single value"}
    read = table.read(["x", "words"], np.asarray([5, 0]))
    np.testing.assert_array_equal(read["x"], x[[5, 0]])
    assert read["words"].tolist() == ["f", "a"]
    whole = table.read(["x"], slice(0, 6))["x"]
    while whole.base is not None and not isinstance(whole, np.memmap):
        whole = whole.base
    assert isinstance(whole, np.memmap)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_files_are_stacked(tmp_path: Path, save: object) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.npz", x=np.full((number + 1, 2), number), y=np.arange(number + 1))  # type: ignore[operator]
    table = NpyDataset(path=str(tmp_path / "*.npz")).open()
    assert table.num_rows == 6
    assert table.read(["x"], slice(0, 6))["x"][:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    assert table.read(["x"], slice(2, 4))["x"][:, 0].tolist() == [1, 2]
    assert table.read(["y"], np.asarray([5, 1, 0]))["y"].tolist() == [2, 0, 0]
    assert table.place(3).startswith("row 1 of")


def test_npy_files_stand_side_by_side(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    np.save(tmp_path / "y.npy", np.asarray([1, 2, 3]))
    np.save(tmp_path / "both.npy", np.asarray([(1, 2.0)] * 3, dtype=[("a", "i4"), ("b", "f8")]))
    table = NpyDataset(path=str(tmp_path / "*.npy")).open()
    assert set(table.columns) == {"x", "y", "a", "b"}
    assert table.read(["y", "a"], slice(1, 3))["y"].tolist() == [2, 3]


def test_npy_over_a_url() -> None:
    import io

    import fsspec

    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(3))
    with fsspec.open("memory://npy/a.npz", "wb") as file:
        file.write(buffer.getvalue())
    assert NpyDataset(path="memory://npy/a.npz").open().read(["x"], slice(0, 3))["x"].tolist() == [0, 1, 2]


def test_npy_refuses_objects_mixtures_and_torn_files(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.asarray([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match="Python objects, which are never loaded"):
        NpyDataset(path=str(tmp_path / "o.npy")).open()
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(SourceError, match="cannot read"):
        NpyDataset(path=str(tmp_path / "torn.npz")).open()
    np.save(tmp_path / "x.npy", np.zeros(2))
    np.savez(tmp_path / "z.npz", x=np.zeros(2))
    with pytest.raises(SourceError, match="use one kind"):
        NpyDataset(path=(str(tmp_path / "x.npy"), str(tmp_path / "z.npz"))).open()
    np.savez(tmp_path / "y.npz", x=np.zeros((2, 3)))
    with pytest.raises(SourceError, match=r"`x` holds \(\) .* and \(3\)"):
        NpyDataset(path=(str(tmp_path / "y.npz"), str(tmp_path / "z.npz"))).open()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_damaged_array_is_refused_and_the_others_are_read(tmp_path: Path, save: object) -> None:
    x, y = np.random.default_rng(0).normal(size=(64, 8)), np.arange(64)
    save(tmp_path / "a.npz", x=x, y=y)  # type: ignore[operator]
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[1000] ^= 1  # among the values of x, which come first
    (tmp_path / "a.npz").write_bytes(content)
    table = NpyDataset(path=str(tmp_path / "a.npz")).open()
    assert table.read(["y"], slice(0, 64))["y"].tolist() == y.tolist()
    with pytest.raises(SourceError, match=r"cannot read .*a\.npz"):
        table.read(["x"], slice(0, 3))


def test_what_no_field_uses_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file of a few kB that unpacks to very much, and holds things that are no arrays of numbers."""
    import zipfile

    arrays = {"large": np.zeros(1 << 20), "y": np.arange(3), "z": np.arange(3) * 2, "objects": np.asarray([{}] * 3)}
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array)
        archive.writestr("readme.txt", "no array")
    unpacked = []
    read = zipfile.ZipExtFile.read

    def counting(self: zipfile.ZipExtFile, n: int | None = -1) -> bytes:
        found = read(self, n)
        unpacked.append(len(found))
        return found

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counting)
    table = NpyDataset(path=str(tmp_path / "bomb.npz")).open()
    assert table.read(["y"], slice(0, 3))["y"].tolist() == [0, 1, 2]
    assert sum(unpacked) < 4_000
    assert table.left_out == {
        "large": "it has 1,048,576 rows where most have 3",
        "objects": "it holds Python objects, which are never loaded",
        "readme.txt": "it is not an array",
    }


def test_arrays_in_the_order_of_fortran_and_with_parts(tmp_path: Path) -> None:
    x = np.asfortranarray(np.arange(24.0).reshape(6, 4))
    parts = np.asarray([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(6))
    np.save(tmp_path / "parts.npy", parts)
    np.save(tmp_path / "x.npy", x[:2])
    table = NpyDataset(path=str(tmp_path / "a.npz")).open()
    assert table.read(["x"], slice(1, 3))["x"].tolist() == x[1:3].tolist()
    table = NpyDataset(path=(str(tmp_path / "parts.npy"), str(tmp_path / "x.npy"))).open()
    read = table.read(["a", "b", "x"], np.asarray([1, 0]))
    assert [read[name].tolist() for name in ("a", "b")] == [[3, 1], [4.0, 2.0]]
    assert read["x"].tolist() == x[[1, 0]].tolist()


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_text_is_the_bytes_of_all_files(tmp_path: Path, where: str) -> None:
    parts = [b"hello ", b"", bytes(range(200)), b"world"]
    folder = str(tmp_path) if where == "disk" else "memory://text"
    import fsspec

    for number, part in enumerate(parts):
        with fsspec.open(f"{folder}/{number}.txt", "wb") as file:
            file.write(part)
    table = TextDataset(path=f"{folder}/*.txt").open()
    whole = np.frombuffer(b"".join(parts), np.uint8)
    assert table.num_rows == len(whole)
    assert table.columns["tokens"].num_values == 256
    np.testing.assert_array_equal(table.read(["tokens"], slice(0, len(whole)))["tokens"], whole)
    np.testing.assert_array_equal(table.read(["tokens"], slice(3, 209))["tokens"], whole[3:209])
    wanted = np.asarray([210, 0, 5, 6, 6, 205, 206])
    np.testing.assert_array_equal(table.read(["tokens"], wanted)["tokens"], whole[wanted])
    assert table.place(6).endswith("2.txt")


@pytest.mark.parametrize("kind", ["classification", "binary", "regression", "images", "tokens"])
def test_made_data_are_a_function_of_seed_and_row(kind: str) -> None:
    def table(**keys: object) -> Table:
        return SyntheticDataset(kind=kind, rows=10**12, **keys).open()  # type: ignore[arg-type]

    names = list(table().columns)
    first = table().read(names, slice(1000, 1040))
    rows = np.asarray([1039, 1000, 10**12 - 1])
    again = table().read(names, rows)
    other = table(seed=1).read(names, slice(1000, 1040))
    for name in names:
        column = table().columns[name]
        assert first[name].shape == (40, *column.shape)
        assert first[name].dtype == column.dtype
        np.testing.assert_array_equal(again[name][:2], first[name][[39, 0]])
        assert (other[name] != first[name]).any()
        if column.num_values is not None:
            assert first[name].min() >= 0
            assert first[name].max() < column.num_values


def test_made_classes_are_as_hard_as_documented() -> None:
    """The nearest of the class means of 20,000 rows, asked about 5,000 others."""
    for noise, low, high in ((0.1, 0.99, 1.0), (0.2, 0.91, 0.97), (0.4, 0.5, 0.65)):
        table = SyntheticDataset(kind="classification", rows=25_000, noise=noise).open()
        read = table.read(["x", "y"], slice(0, 25_000))
        x, y = read["x"].astype(float), read["y"]
        means = np.stack([x[:20_000][y[:20_000] == label].mean(axis=0) for label in range(10)])
        guess = ((x[20_000:, None] - means) ** 2).sum(-1).argmin(1)
        assert low <= (guess == y[20_000:]).mean() <= high
        assert 0.9 < x.std() < 1.1
        assert (np.bincount(y) > 2_000).all()


def test_made_numbers_are_normal_and_words_repeat() -> None:
    table = SyntheticDataset(kind="regression", rows=50_000, features=4).open()
    x = table.read(["x"], slice(0, 50_000))["x"]
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs(np.corrcoef(x[1:, 0], x[:-1, 0])[0, 1]) < 0.02
    text = SyntheticDataset(kind="tokens", rows=80_000, noise=0.0).open().read(["tokens"], slice(0, 80_000))["tokens"]
    assert len(np.unique(text.reshape(-1, 8), axis=0)) == 64


def test_made_data_refuse_keys_of_another_kind() -> None:
    with pytest.raises(ValueError, match="`vocabulary` is not used by `kind: regression`, only by tokens"):
        SyntheticDataset(kind="regression", rows=3, vocabulary=7)
    with pytest.raises(ValueError, match="at most 1"):
        SyntheticDataset(kind="tokens", rows=3, noise=2)
