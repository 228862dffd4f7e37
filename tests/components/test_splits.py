"""Splits: which rows they choose, of few rows and of many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from declarative_train.components.split import Candidates, Draw, Split
from declarative_train.components.splits import SPLITS
from declarative_train.data.order import permute


def chosen(
    split: Split, behind: float = 0.0, by: str | None = None, sort: str | None = None, seed: int = 7, **columns: Any
) -> Any:
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    size = len(next(iter(arrays.values())))
    rows = Candidates(
        size, size, arrays.__getitem__, lambda n: permute(seed, np.arange(n), n), by=by, sort=sort, behind=behind
    )
    return split.choose(rows)


def make(kind: str, **keys: object) -> Split:
    return SPLITS[kind].model_validate({"type": kind, **keys})


def test_random_asks_for_a_number_of_rows() -> None:
    assert chosen(make("random", fraction=0.25), x=range(10)) == Draw(2)


def test_last_takes_the_end_and_neighbours_meet() -> None:
    validation, test = make("last", fraction=0.15), make("last", fraction=0.1)
    assert chosen(test, x=range(25)) == range(23, 25)
    assert chosen(validation, behind=0.1, x=range(25)) == range(19, 23)


def test_last_by_a_column_and_by_the_windows_order() -> None:
    time = [5, 1, 4, 2, 3, 0]
    assert chosen(make("last", fraction=0.5, sort="t"), t=time).tolist() == [0, 2, 4]
    meters = ["a", "b", "a", "b", "a", "b"]
    found = chosen(make("last", fraction=0.34), by="m", sort="t", t=time, m=np.asarray(meters, object))
    assert found.tolist() == [0, 3]
    with pytest.raises(ValueError, match="has missing values"):
        chosen(make("last", fraction=0.5, sort="t"), t=[1.0, np.nan])


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.5])
def test_stratified_keeps_the_shares(fraction: float) -> None:
    kind = np.repeat([0, 1, 2], [1000, 100, 7])
    found = chosen(make("stratified", fraction=fraction, column="y"), y=np.random.default_rng(0).permutation(kind))
    assert len(found) == round(fraction * 1107)
    assert (np.diff(found) > 0).all()
    y = np.random.default_rng(0).permutation(kind)
    np.testing.assert_allclose(np.bincount(y[found]), fraction * np.asarray([1000, 100, 7]), atol=1)


@pytest.mark.parametrize(
    ("sizes", "fraction"), [([4] * 100, 0.1), ([3] * 30, 0.1), ([1000, 100, 7], 0.25), ([11, 5, 5, 31, 2, 90], 0.3)]
)
def test_stratified_counts_are_those_of_scikit_learn(sizes: list[int], fraction: float) -> None:
    """Its largest remainders are the same; which of equal ones are rounded up is a draw in both."""
    from sklearn.model_selection import StratifiedShuffleSplit

    y = np.repeat(np.arange(len(sizes)), sizes)
    wanted = round(fraction * len(y))
    found = np.bincount(y[chosen(make("stratified", fraction=fraction, column="y"), y=y)], minlength=len(sizes))
    exact = np.asarray(sizes) * wanted / len(y)
    assert found.sum() == wanted
    assert (np.abs(found - exact) < 1).all()
    if wanted >= len(sizes):  # scikit-learn refuses smaller sets
        _, theirs = next(StratifiedShuffleSplit(1, test_size=wanted, random_state=0).split(y, y))
        assert (np.abs(found - np.bincount(y[theirs], minlength=len(sizes))) <= 1).all()


def test_stratified_gives_left_over_rows_to_classes_by_chance() -> None:
    """100 classes of 4 rows, a set of 40: 40 classes have a row, each class equally often over the seeds."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 4))
    num_seeds = 200
    counts = np.zeros(100)
    for seed in range(num_seeds):
        inside = y[chosen(make("stratified", fraction=0.1, column="y"), seed=seed, y=y)]
        assert len(set(inside)) == 40
        counts[inside] += 1
    chi_square = ((counts - 80) ** 2 / (num_seeds * 0.4 * 0.6)).sum()  # 99 degrees of freedom
    assert 55 < chi_square < 150, chi_square  # of such a variable 99.8%


def test_stratified_refuses_a_column_of_ids() -> None:
    for ids in (np.arange(120), np.asarray([f"picture_{at}.png" for at in range(120)], object), np.arange(150) % 100):
        with pytest.raises(ValueError, match=r"`y` has .* an id rather than a class"):
            chosen(make("stratified", fraction=0.2, column="y"), y=ids)


def test_grouped_keeps_groups_whole() -> None:
    patient = np.repeat(np.arange(50), np.arange(1, 51))
    found = chosen(make("grouped", fraction=0.2, column="p"), p=patient)
    inside = set(patient[found])
    assert not inside & set(np.delete(patient, found))
    assert abs(len(found) - 0.2 * len(patient)) <= 50


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ({"in": (11, 12)}, [1, 3]),
        ({"not_in": (11, 12)}, [0, 2]),
        ({"equals": 10}, [0]),
        ({"less": 11}, [0]),
        ({"at_most": 11}, [0, 1]),
        ({"greater": 11}, [2, 3]),
        ({"at_least": 11.5, "less": 13}, [3]),
        ({"in": (10, 11.5)}, [0]),
    ],
)
def test_where_compares(keys: dict[str, object], rows: list[int]) -> None:
    assert chosen(make("where", column="m", **keys), m=[10, 11, 13, 12]).tolist() == rows


def test_where_on_text_dates_bools_and_missing_values() -> None:
    words = np.asarray(["a", None, "b"], object)
    assert chosen(make("where", column="w", equals="b"), w=words).tolist() == [2]
    assert chosen(make("where", column="w", not_in=("a",)), w=words).tolist() == [2]
    days = np.asarray(["2024-01-01", "NaT", "2024-06-01"], "datetime64[ns]")
    assert chosen(make("where", column="d", at_least="2024-03-01"), d=days).tolist() == [2]
    assert chosen(make("where", column="b", equals=False), b=[True, False]).tolist() == [1]
    assert chosen(make("where", column="x", less=5), x=[1.0, np.nan]).tolist() == [0]


@pytest.mark.parametrize(
    ("values", "asked", "words"),
    [
        ([1, 2], "nine", "`x` contains numbers, but `nine` is not"),
        (np.asarray(["a"], object), 1, "`x` contains text"),
        ([True], 1, "`x` contains true and false"),
        (np.asarray(["2024-01-01"], "datetime64[ns]"), "soon", "`soon` is not a date"),
        (np.asarray(["2024-01-01"], "datetime64[ns]"), 3, "`x` contains dates"),
        ([1, 2], True, "`true` is not"),
    ],
)
def test_where_does_not_compare_apples_with_pears(values: Any, asked: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        chosen(make("where", column="x", equals=asked), x=values)


def test_keys() -> None:
    with pytest.raises(ValidationError, match="set the values"):
        make("where", column="x")
    for fraction in (0.0, 1.0, 1.5):
        with pytest.raises(ValidationError):
            make("random", fraction=fraction)
    own = make("source", source={"type": "csv", "path": ["a.csv", "b.csv"]})
    assert own.own_source is not None
    assert own.own_source.paths == ("a.csv", "b.csv")
    assert own.model_dump(mode="json")["source"]["path"] == ["a.csv", "b.csv"]


@pytest.mark.parametrize("order", [("grouped", "random"), ("random", "grouped"), ("stratified", "grouped")])
def test_groups_stay_whole_beside_sets_of_single_rows_in_any_order(order: tuple[str, str]) -> None:
    import pyarrow as pa

    from declarative_train.components.datasets.arrow_columns import MemoryTable
    from declarative_train.data.split_rows import split_rows

    rng = np.random.default_rng(0)
    patient = rng.integers(0, 20, 400)
    table = MemoryTable([("t", pa.table({"patient": patient, "ill": rng.integers(0, 2, 400)}))])
    makes = {
        "grouped": make("grouped", fraction=0.25, column="patient"),
        "random": make("random", fraction=0.2),
        "stratified": make("stratified", fraction=0.2, column="ill"),
    }
    found = split_rows(table, {kind: makes[kind] for kind in order}, seed=1)
    groups = {name: set(patient[rows.at(np.arange(len(rows)))]) for name, rows in found.items()}
    assert list(found) == ["training", *order]
    assert groups["grouped"]
    for name in found.keys() - {"grouped"}:
        assert not groups["grouped"] & groups[name]
