"""Windows: runs of rows of one group and one set, whatever the order of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from declarative_train.data.spec import DataSpec
from declarative_train.data.tensor_sets import SampleSet, open_sets

Spec = Callable[..., DataSpec]


@pytest.fixture
def meters(tmp_path: Path) -> str:
    """Three meters of 20, 14 and 5 hours, their rows mixed; load = 100 x meter + hour."""
    rows = [(meter, hour) for meter, hours in (("a", 20), ("b", 14), ("c", 5)) for hour in range(hours)]
    rows = [rows[position] for position in np.random.default_rng(0).permutation(len(rows))]
    path = tmp_path / "load.csv"
    lines = [f"{meter},{hour},{100 * 'abc'.index(meter) + hour}" for meter, hour in rows]
    path.write_text("\n".join(["meter,time,load", *lines]))
    return str(path)


def loads(samples: SampleSet, name: str = "load") -> list[list[int]]:
    found = samples.gather(np.arange(samples.num_samples))[name]
    return [[int(value) for value in row] for row in found.reshape(samples.num_samples, -1)]


def load_spec(spec: Spec, path: str, **keys: object) -> DataSpec:
    return spec(
        source={"type": "csv", "path": path},
        fields={"load": {"column": "load"}},
        window={"length": 4, "stride": 2, "by": "meter", "sort": "time"},
        **keys,
    )


def test_windows_are_sorted_runs_of_one_group(spec: Spec, meters: str) -> None:
    data = load_spec(spec, meters)
    wanted = [[100 * g + s + i for i in range(4)] for g, n in ((0, 20), (1, 14), (2, 5)) for s in range(0, n - 3, 2)]
    assert loads(open_sets(data)["training"]) == wanted
    assert data.sets[0].num_samples == len(wanted)


def test_the_last_rows_of_each_group_are_cut_before_windows_are_made(spec: Spec, meters: str) -> None:
    split = {"validation": {"type": "last", "fraction": 0.2}, "test": {"type": "last", "fraction": 0.2}}
    sets = open_sets(load_spec(spec, meters, split=split))
    training, validation, test = (loads(sets[name]) for name in ("training", "validation", "test"))
    assert training == [[s + i for i in range(4)] for s in range(0, 9, 2)] + [
        [100 + s + i for i in range(4)] for s in range(0, 5, 2)
    ]
    assert validation == [[12, 13, 14, 15]]
    assert test == [[16, 17, 18, 19]]
    used = [{value for row in each for value in row} for each in (training, validation, test)]
    assert not used[0] & used[1]
    assert not used[1] & used[2]


def test_no_window_bridges_the_rows_of_another_set(spec: Spec, meters: str) -> None:
    split = {
        "noon": {"type": "where", "column": "time", "in": [9]},
        "b": {"type": "where", "column": "meter", "equals": "b"},
    }
    sets = open_sets(load_spec(spec, meters, split={"b": split["b"]}))
    assert {row[0] // 100 for row in loads(sets["b"])} == {1}
    assert {row[0] // 100 for row in loads(sets["training"])} == {0, 2}
    grouped = open_sets(load_spec(spec, meters, split={"v": {"type": "grouped", "fraction": 0.4, "column": "meter"}}))
    groups = [{value // 100 for row in loads(each) for value in row} for each in grouped.values()]
    assert not groups[0] & groups[1]
    data = spec(
        source={"type": "csv", "path": meters},
        fields={"load": {"column": "load"}},
        window={"length": 1, "by": "meter", "sort": "time"},
        split={"noon": split["noon"]},
    )
    assert sorted(row[0] for row in loads(open_sets(data)["noon"])) == [9, 109]
    long = spec(
        source={"type": "csv", "path": meters},
        fields={"load": {"column": "load"}},
        window={"length": 3, "stride": 1, "by": "meter", "sort": "time"},
        split={"rest": {"type": "where", "column": "time", "greater": 9}},
    )
    for each in open_sets(long).values():
        assert all(np.diff(row).tolist() == [1, 1] for row in loads(each))
        assert all(len({value % 100 > 9 for value in row}) == 1 for row in loads(each))


def test_rows_of_a_window_and_single_rows(spec: Spec, meters: str) -> None:
    data = spec(
        source={"type": "csv", "path": meters},
        fields={
            "past": {"columns": ["load", "time"], "rows": ":3"},
            "future": {"column": "load", "rows": "3:"},
            "last": {"column": "load", "rows": -1},
            "meter": {"type": "category", "column": "meter", "rows": 0},
        },
        window={"length": 5, "by": "meter", "sort": "time"},
    )
    assert {each.name: each.tensor.shape for each in data.fields} == {
        "past": (3, 2),
        "future": (2,),
        "last": (),
        "meter": (),
    }
    found = open_sets(data)["training"].gather(np.asarray([1, 4]))
    assert found["past"].tolist() == [[[5, 5], [6, 6], [7, 7]], [[100, 0], [101, 1], [102, 2]]]
    assert found["future"].tolist() == [[8, 9], [103, 104]]
    assert found["last"].tolist() == [9, 104]
    assert found["meter"].tolist() == [0, 1]


@pytest.mark.parametrize("where", ["disk", "memory"])
@pytest.mark.packs
def test_a_text_gives_tokens_and_the_next_ones(spec: Spec, tmp_path: Path, where: str) -> None:
    import fsspec

    folder = str(tmp_path) if where == "disk" else "memory://windows"
    text = bytes(range(97, 97 + 26)) * 5
    for number, part in enumerate((text[:50], text[50:])):
        with fsspec.open(f"{folder}/{number}.txt", "wb") as file:
            file.write(part)
    data = spec(
        source={"type": "text", "path": f"{folder}/*.txt"},
        fields={"tokens": {"column": "tokens", "rows": ":-1"}, "next": {"column": "tokens", "rows": "1:"}},
        window={"length": 9, "stride": 8},
        split={"validation": {"type": "last", "fraction": 0.2}},
    )
    assert [(each.tensor.shape, each.tensor.dtype, each.tensor.num_values) for each in data.fields] == [
        ((8,), "int64", 256)
    ] * 2
    assert [each.num_samples for each in data.sets] == [12, 3]
    sets = open_sets(data)
    for number in range(12):
        found = sets["training"].gather(np.asarray([number]))
        assert bytes(found["tokens"][0].tolist()) == text[number * 8 : number * 8 + 8]
        assert bytes(found["next"][0].tolist()) == text[number * 8 + 1 : number * 8 + 9]
    first = sets["validation"].gather(np.asarray([0]))["tokens"][0]
    assert bytes(first.tolist()) == text[104:112]
    assert [len(each.path) > 0 for each in data.files] == [True, True]


@pytest.mark.packs
def test_large_tokens_are_held_in_bytes(spec: Spec, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(bytes(range(256)) * 20_000)
    data = spec(
        source={"type": "text", "path": str(path)}, fields={"tokens": {"column": "tokens"}}, window={"length": 256}
    )
    training = open_sets(data)["training"]
    assert training.prepared.held["tokens"].dtype == np.uint8  # type: ignore[attr-defined]
    found = training.gather(np.asarray([19_999, 3]))["tokens"]
    assert found.tolist() == [list(range(256))] * 2
    assert str(found.dtype) == "torch.int64"
