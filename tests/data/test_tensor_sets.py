"""Sets: cut once, disjoint and complete; statistics of training rows; the same again from a spec; changes noticed."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data import shared_sets
from declarative_train.data.shared_sets import training_values
from declarative_train.data.source import SAMPLE_BYTES, WHOLE_BYTES, record_files
from declarative_train.data.spec import DataError, DataSpec, FieldSpec, SetSpec
from declarative_train.data.tensor_sets import HeldSet, open_sets

Spec = Callable[..., DataSpec]


@pytest.fixture
def table(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    lines = ["row,kind,group,month,x"]
    lines += [f"{n},{'ab'[rng.integers(2)]},{rng.integers(9)},{1 + n % 12},{n + 0.5}" for n in range(240)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(lines))
    return str(path)


def rows(data: DataSpec) -> dict[str, list[int]]:
    return {name: each.gather(np.arange(each.num_samples))["row"].tolist() for name, each in open_sets(data).items()}


def cut(spec: Spec, table: str, seed: int = 0, **split: object) -> dict[str, list[int]]:
    data = spec(
        source={"type": "csv", "path": table},
        fields={"row": {"column": "row", "dtype": "int64"}},
        split=split,
        seed=seed,
    )
    found = rows(data)
    assert list(found) == ["training", *split]
    assert [each.num_samples for each in data.sets] == [len(each) for each in found.values()]
    assert sorted(row for each in found.values() for row in each) == list(range(240))
    assert all(each == sorted(each) for each in found.values())
    return found


SPLITS: list[dict[str, object]] = [
    {},
    {"validation": 0.25},
    {"validation": 0.2, "test": 0.1},
    {"validation": {"type": "last", "fraction": 0.1}, "test": {"type": "last", "fraction": 0.1}},
    {
        "a": {"type": "where", "column": "month", "in": [11, 12]},
        "b": {"type": "where", "column": "month", "at_least": 11},
    },
    {
        "v": {"type": "stratified", "fraction": 0.2, "column": "kind"},
        "t": {"type": "where", "column": "month", "equals": 3},
    },
    {
        "v": {"type": "grouped", "fraction": 0.3, "column": "group"},
        "t": {"type": "last", "fraction": 0.2, "sort": "x"},
        "r": 0.1,
    },
    {"v": {"type": "last", "fraction": 0.2, "sort": "month"}, "t": {"type": "last", "fraction": 0.2}},
]


@pytest.mark.parametrize("split", SPLITS)
def test_sets_are_disjoint_and_complete_and_follow_the_seed(spec: Spec, table: str, split: dict[str, object]) -> None:
    if "b" in split:
        split = {**split, "b": {"type": "where", "column": "month", "at_least": 10}}
    once = cut(spec, table, **split)
    assert cut(spec, table, **split) == once
    by_chance = any(isinstance(each, float) or each["type"] in ("stratified", "grouped") for each in split.values())  # type: ignore[index]
    assert (cut(spec, table, seed=1, **split) != once) == by_chance


def test_sizes_and_order_of_the_cuts(spec: Spec, table: str) -> None:
    found = cut(
        spec,
        table,
        near={"type": "last", "fraction": 0.1},
        spring={"type": "where", "column": "month", "in": [3, 4, 5]},
        some=0.5,
        far={"type": "last", "fraction": 0.1},
    )
    left = [row for row in range(240) if row % 12 not in (2, 3, 4)]
    assert found["spring"] == [row for row in range(240) if row % 12 in (2, 3, 4)]
    assert found["far"] == left[162:]
    assert found["near"] == left[144:162]
    assert len(found["some"]) == 90
    assert len(found["training"]) == 54


def test_adding_a_set_by_chance_keeps_the_one_before(spec: Spec, table: str) -> None:
    assert cut(spec, table, validation=0.2, test=0.1)["validation"] == cut(spec, table, validation=0.2)["validation"]


def test_a_set_of_its_own_source_trains_nothing(spec: Spec, table: str, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("x,row\n1000.5,900\n2000.5,901\n")
    data = spec(
        source={"type": "csv", "path": table},
        fields={"row": {"column": "row", "dtype": "int64"}, "x": {"column": "x", "normalize": "minmax"}},
        split={"new": {"source": {"type": "csv", "path": str(tmp_path / "new.csv")}}, "validation": 0.2},
    )
    found = rows(data)
    assert found["new"] == [900, 901]
    assert len(found["training"]) + len(found["validation"]) == 240
    assert data.set("new").source == {
        "type": "csv",
        "path": str(tmp_path / "new.csv"),
        "delimiter": ",",
        "decimal": ".",
        "encoding": "utf-8",
        "missing_values": [],
        "columns": None,
    }
    assert len(data.files) == 2
    x = open_sets(data)["new"].gather(np.arange(2))["x"]
    low, high = min(found["training"]) + 0.5, max(found["training"]) + 0.5
    np.testing.assert_allclose(x, (np.asarray([1000.5, 2000.5]) - low) / (high - low), rtol=1e-6)


def test_statistics_are_those_of_the_training_rows(spec: Spec, table: str) -> None:
    data = spec(
        source={"type": "csv", "path": table},
        fields={"x": {"column": "x", "normalize": "standard"}, "row": {"column": "row", "dtype": "int64"}},
        split={"validation": {"type": "last", "fraction": 0.5}},
    )
    assert data.fields[0].statistics == {"subtract": [60.0], "divide": [pytest.approx(np.arange(120).std())]}
    assert data.fields[1].statistics == {"least": 0, "greatest": 119}
    sets = open_sets(data)
    x = sets["training"].gather(np.arange(120))["x"]
    assert abs(x.mean()) < 1e-6
    assert sets["validation"].gather(np.arange(120))["x"].mean() > 1


def test_what_was_described_is_not_read_again(spec: Spec, table: str) -> None:
    data = spec(source={"type": "csv", "path": table}, fields={"x": {"column": "x"}}, split={"validation": 0.2})
    Path(table).unlink()
    assert open_sets(through_json(data))["training"].num_samples == 192
    shared_sets._latest.clear()
    with pytest.raises(DataError, match=r"there is no file .*table\.csv"):
        open_sets(data)


def through_json(data: DataSpec) -> DataSpec:
    """As a saved plan gives it back: lists for tuples in component mappings."""
    plain = json.loads(json.dumps(dataclasses.asdict(data)))
    fields = tuple(
        FieldSpec(
            f["name"],
            f["component"],
            TensorSpec(
                **{
                    **f["tensor"],
                    "shape": tuple(f["tensor"]["shape"]),
                    "bounds": tuple(map(tuple, f["tensor"]["bounds"])),
                }
            ),
            f["statistics"],
            tuple(f["columns"]),
        )
        for f in plain["fields"]
    )
    return dataclasses.replace(
        data, source=plain["source"], fields=fields, sets=tuple(SetSpec(**each) for each in plain["sets"])
    )


def test_a_spec_alone_opens_the_same_sets(spec: Spec, table: str) -> None:
    data = spec(
        source={"type": "csv", "path": [table]},
        fields={
            "x": {"columns": ["x", "row"], "normalize": "standard"},
            "kind": {"type": "category", "column": "kind", "unknown": 0},
            "row": {"column": "row", "dtype": "int64"},
        },
        split={
            "v": {"type": "stratified", "fraction": 0.2, "column": "kind"},
            "t": {"type": "where", "column": "month", "in": [3]},
        },
    )
    before = {name: each.gather(np.arange(each.num_samples)) for name, each in open_sets(data).items()}
    shared_sets._latest.clear()
    after = {name: each.gather(np.arange(each.num_samples)) for name, each in open_sets(through_json(data)).items()}
    assert before.keys() == after.keys()
    for name, fields in before.items():
        assert all(torch.equal(after[name][field], values) for field, values in fields.items())


def test_data_that_changed_since_are_refused(spec: Spec, table: str) -> None:
    keys: dict[str, object] = {"source": {"type": "csv", "path": table}, "fields": {"x": {"column": "x"}}}
    data = spec(**keys)
    text = Path(table).read_text()
    for changed, words in (
        (text + "\n1,a,1,1,1", "`training` has 241 samples, but the plan was made for 240"),
        (text.replace(",x", ",z", 1), "the column `x` of field `x` no longer exists"),
        (text + "\n1,a,1,1,", "field `x`: `x` misses a value"),
    ):
        Path(table).write_text(changed)
        shared_sets._latest.clear()
        with pytest.raises(DataError, match=words):
            open_sets(data)
    shared_sets._latest.clear()
    with pytest.raises(DataError, match="`telepathy`, which this version of dtrain does not have"):
        open_sets(dataclasses.replace(data, source={"type": "telepathy"}))


def test_a_forked_rank_inherits_the_sets(spec: Spec, table: str) -> None:
    data = spec(source={"type": "csv", "path": table}, fields={"x": {"column": "x"}})
    Path(table).unlink()
    child = os.fork()
    if not child:
        good = open_sets(data)["training"].gather(np.asarray([239]))["x"].tolist() == [239.5]
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_dtypes_of_the_batch_are_those_of_the_spec(spec: Spec, table: str) -> None:
    dtypes = ["float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "uint8", "bool"]
    data = spec(
        source={"type": "csv", "path": table},
        fields={dtype: {"column": "month", "dtype": dtype} for dtype in dtypes},
        window={"length": 2},
    )
    for name, tensor in open_sets(data)["training"].gather(np.asarray([0, 5])).items():
        assert str(tensor.dtype) == f"torch.{name}"
        assert tensor.shape == (2, 2)


def test_training_values_come_in_chunks(spec: Spec) -> None:
    data = spec(
        source={"type": "synthetic", "kind": "classification", "rows": 40_000},
        fields={"x": {"column": "x"}, "y": {"column": "y"}},
        split={"validation": 0.25},
    )
    chunks = list(training_values(data, "y"))
    assert sum(map(len, chunks)) == 30_000
    assert max(map(len, chunks)) < 30_000
    y = open_sets(data)["training"].gather(np.arange(30_000))["y"]
    assert np.concatenate(chunks).tolist() == y.tolist()


def test_made_data_of_any_size_take_no_memory(spec: Spec) -> None:
    data = spec(
        source={"type": "synthetic", "kind": "regression", "rows": 10**12},
        fields={"x": {"column": "x"}, "y": {"column": "y"}},
        split={"validation": 0.1, "test": {"type": "last", "fraction": 0.1}},
    )
    sizes = {each.name: each.num_samples for each in data.sets}
    assert sizes == {"training": 8 * 10**11, "validation": 10**11, "test": 10**11}
    sets = open_sets(data)
    assert not sets["training"].is_held
    ends = {name: each.gather(np.asarray([0, each.num_samples - 1]))["y"] for name, each in sets.items()}
    assert len({float(value) for pair in ends.values() for value in pair}) == 6


def test_a_held_set_owns_its_memory(spec: Spec, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(8, dtype=np.float32))
    data = spec(source={"type": "npy", "path": str(tmp_path / "a.npz")}, fields={"x": {"column": "x"}})
    training = open_sets(data)["training"]
    assert isinstance(training, HeldSet)
    with (tmp_path / "a.npz").open("r+b") as file:
        file.truncate(10)
    assert training.gather(np.arange(8))["x"].tolist() == list(range(8))


def test_records_of_files(tmp_path: Path) -> None:
    """A few small files are read whole; of a large one, or of many, a sample, and then its date counts too."""
    import hashlib
    import os

    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(b"abc")
    assert [(each.sha256, each.modified_ns) for each in record_files([str(small)])] == [
        (hashlib.sha256(b"abc").hexdigest(), None)
    ]
    with large.open("wb") as file:
        file.truncate(WHOLE_BYTES + 3)
    os.utime(large, ns=(1, 1))
    (before,) = record_files([str(large)])
    assert (before.size_bytes, before.modified_ns) == (WHOLE_BYTES + 3, 1)
    for place in (0, WHOLE_BYTES // 2, WHOLE_BYTES):
        with large.open("r+b") as file:
            file.seek(place)
            file.write(b"x")
        os.utime(large, ns=(1, 1))
        (after,) = record_files([str(large)])
        assert after.sha256 != before.sha256
        before = after
    with large.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"x")
    (after,) = record_files([str(large)])
    assert after.sha256 == before.sha256
    assert after.modified_ns != before.modified_ns


def test_many_files_are_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.files import open_files

    paths = [tmp_path / str(number) for number in range(5)]
    for path in paths:
        with path.open("wb") as file:
            file.truncate(WHOLE_BYTES)
    read = []

    def counting(path: str, start: int = 0, end: int | None = None) -> bytes:
        found = open_files.read_bytes(path, start, end)
        read.append(len(found))
        return found

    monkeypatch.setattr("declarative_train.data.source.read_bytes", counting)
    found = record_files(str(path) for path in paths)
    assert sum(read) == 5 * 3 * SAMPLE_BYTES
    assert len({each.sha256 for each in found}) == 1


def test_a_set_of_very_many_made_rows_is_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By position: as many draws as rows are looked at, and no list of all."""
    from declarative_train.components.datasets.synthetic import SyntheticDataset
    from declarative_train.components.splits.shares import RandomSplit
    from declarative_train.data import rows, split_rows

    drawn = []

    def counting(key: int, positions: np.ndarray, size: int) -> np.ndarray:
        drawn.append(len(positions))
        return permute(key, positions, size)

    from declarative_train.data.order import permute

    for module in (split_rows, rows):
        monkeypatch.setattr(module, "permute", counting)
    table = SyntheticDataset(kind="regression", rows=10**8).open()
    found = split_rows.split_rows(table, {"v": RandomSplit(fraction=0.1), "t": RandomSplit(fraction=0.1)}, seed=0)
    assert [len(each) for each in found.values()] == [8 * 10**7, 10**7, 10**7]
    places = np.arange(1000)
    numbers = np.concatenate([each.at(places) for each in found.values()])
    assert len(np.unique(numbers)) == 3000
    assert sum(drawn) < 10_000
