"""Fields: columns become tensors and class numbers, with statistics of the rows they are told to count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from declarative_train.components.data import BadValueError, Column, Field
from declarative_train.components.fields import FIELDS
from declarative_train.components.fields.category import CategoryField
from declarative_train.components.fields.columns import match_columns
from declarative_train.components.fields.tensor import TensorField
from declarative_train.core.tensor_spec import TensorSpec


def columns_of(arrays: dict[str, np.ndarray]) -> list[Column]:
    return [Column(name, array.dtype.name, array.shape[1:]) for name, array in arrays.items()]


def statistics(field: Field, arrays: dict[str, np.ndarray], chunk: int = 2) -> dict[str, object]:
    tally = field.tally(columns_of(arrays))
    if tally is None:
        return {}
    size = len(next(iter(arrays.values())))
    for start in range(0, size, chunk):
        tally.add([array[start : start + chunk] for array in arrays.values()])
    return tally.result()


def made(field: Field, arrays: dict[str, np.ndarray], training: dict[str, np.ndarray] | None = None) -> np.ndarray:
    columns = columns_of(arrays)
    assert field.check(columns) is None
    counted = statistics(field, training or arrays)
    values = field.convert(list(arrays.values()), columns, counted)
    spec = field.row_spec(columns, counted)
    assert values.shape[1:] == spec.shape
    assert values.dtype.name == {"bfloat16": "float32"}.get(spec.dtype, spec.dtype)
    return values


def test_globs_keep_the_order_of_the_file_and_names_count_once() -> None:
    names = ["p0", "p1", "p10", "p2", "label"]
    assert match_columns(["p*"], names) == (("p0", "p1", "p10", "p2"), ())
    assert match_columns(["label", "p*", "p1", "z*", "lable"], names) == (
        ("label", "p0", "p1", "p10", "p2"),
        ("z*", "lable"),
    )


def test_a_column_has_no_dimension_and_a_list_of_one_has() -> None:
    values = {"x": np.asarray([1, 2, 3])}
    assert made(TensorField(column="x"), values).shape == (3,)
    assert made(TensorField(columns=("x",)), values).shape == (3, 1)
    assert made(TensorField(columns=("x",)), values).dtype == np.float32


def test_dtype_left_out_is_int64_where_the_source_knows_the_range() -> None:
    tokens = [Column("tokens", "uint8", (), 256)]
    assert TensorField(column="tokens").row_spec(tokens, {}) == TensorSpec((), "int64", 256)
    assert TensorField(column="tokens", scale=2.0).row_spec(tokens, {}) == TensorSpec((), "float32")
    assert TensorField(column="tokens", dtype="float32").row_spec(tokens, {}).num_values is None
    assert TensorField(column="n", dtype="int64").row_spec([Column("n", "int64")], {}) == TensorSpec((), "int64")


def test_missing_then_scale_then_normalise_by_the_training_rows() -> None:
    training = {"a": np.asarray([1.0, np.nan, 3.0, 5.0]), "b": np.asarray([2, 2, 2, 2])}
    other = {"a": np.asarray([np.nan, 7.0]), "b": np.asarray([2, 3])}
    field = TensorField(columns=("a", "b"), scale=10.0, normalize="standard", missing="mean", dtype="float64")
    std = np.std([10.0, 30.0, 50.0])
    np.testing.assert_allclose(made(field, other, training), [[0, 0], [40 / std, 10]])
    field = TensorField(columns=("a", "b"), normalize="minmax", missing="zero", dtype="float64")
    np.testing.assert_allclose(made(field, other, training), [[-0.25, 0], [1.5, 1]])
    assert made(TensorField(column="a", missing=-1.0), {"a": other["a"]}).tolist() == [-1.0, 7.0]
    minmax = TensorField(column="a", normalize="minmax", missing="zero", scale=-1.0, dtype="float64")
    np.testing.assert_allclose(made(minmax, {"a": training["a"]}), [1, 1.25, 0.5, 0])


def test_statistics_do_not_depend_on_chunks_and_hold_for_large_offsets() -> None:
    values = {"a": np.random.default_rng(0).normal(1e8, 1.0, 1000)}
    field = TensorField(column="a", normalize="standard")
    whole = statistics(field, values, 1000)
    for chunk in (1, 7, 333):
        for key, value in statistics(field, values, chunk).items():
            np.testing.assert_allclose(value, whole[key], rtol=1e-6)  # type: ignore[call-overload]
    np.testing.assert_allclose(whole["divide"], values["a"].std(), rtol=1e-6)  # type: ignore[call-overload]


def test_an_array_column_is_normalised_by_element_and_reshaped() -> None:
    values = {"x": np.arange(24).reshape(4, 6)}
    found = made(TensorField(column="x", normalize="standard", shape=(2, 3)), values)
    assert found.shape == (4, 2, 3)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(found.std(axis=0), 1, rtol=1e-6)


def test_integers_bools_and_ranges() -> None:
    assert made(TensorField(column="n", dtype="int32"), {"n": np.asarray([1.0, 2.0])}).tolist() == [1, 2]
    assert made(TensorField(column="b", dtype="bool"), {"b": np.asarray([0, 2])}).tolist() == [False, True]
    assert made(TensorField(column="b", dtype="int64"), {"b": np.asarray([True, False])}).tolist() == [1, 0]
    assert statistics(TensorField(column="n", dtype="int64"), {"n": np.asarray([4, 9, -2])}) == {
        "least": -2,
        "greatest": 9,
    }
    assert made(TensorField(column="x", dtype="bfloat16"), {"x": np.asarray([0.5])}).tolist() == [0.5]


@pytest.mark.parametrize(
    ("keys", "values", "problem", "words"),
    [
        ({"column": "a"}, [1.0, np.nan, np.nan], "missing", "`a` misses 2 values"),
        ({"column": "a", "dtype": "int64"}, [1.0, 2.5], "fraction", "`a` is 2.5, which is not a whole number"),
        ({"column": "a", "dtype": "uint8"}, [1, 300], "outside", "`a` is 300, and uint8 goes from 0 to 255"),
        ({"column": "a", "dtype": "int64"}, [1.0, np.inf], "fraction", "`a` is inf"),
    ],
)
def test_values_that_a_tensor_cannot_take(keys: dict[str, Any], values: list[float], problem: str, words: str) -> None:
    with pytest.raises(BadValueError) as found:
        made(TensorField(**keys), {"a": np.asarray(values)})
    assert (found.value.problem, found.value.column, found.value.row) == (problem, "a", 1)
    assert words in str(found.value)


def test_nothing_to_count_is_said() -> None:
    with pytest.raises(ValueError, match="`b` has no value in the training rows"):
        statistics(
            TensorField(columns=("a", "b"), normalize="standard", missing="zero"),
            {"a": np.zeros(2), "b": np.full(2, np.nan)},
        )
    with pytest.raises(ValueError, match="`a` holds infinite values"):
        statistics(TensorField(column="a", normalize="standard"), {"a": np.asarray([1.0, np.inf])})


@pytest.mark.parametrize(
    ("keys", "columns", "words", "field"),
    [
        ({"column": "a"}, [Column("a", "object")], "`a` holds text", "column"),
        ({"columns": "a*"}, [Column("a", "datetime64[ns]")], "`a` holds dates", "columns"),
        ({"columns": ("a", "b")}, [Column("a", "int64"), Column("b", "int64", (3,))], "(3,)", "columns"),
        ({"column": "a", "shape": (2, 2)}, [Column("a", "int64", (3,))], "3 values and shape (2, 2) 4", "shape"),
    ],
)
def test_columns_that_a_tensor_cannot_be_made_of(
    keys: dict[str, Any], columns: Sequence[Column], words: str, field: str
) -> None:
    shape_error = TensorField(**keys).check(columns)
    assert shape_error is not None
    assert words in shape_error.message
    assert shape_error.field == field


@pytest.mark.parametrize("kind", ["tensor", "category"])
@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "name its"),
        ({"column": "a", "columns": ["b"]}, "not both"),
        ({"column": "a*"}, "write `columns"),
        ({"column": "a", "rows": "1:2:0"}, "takes a slice"),
        ({"column": "a", "rows": "one"}, "takes a slice"),
    ],
)
def test_keys_that_do_not_agree(kind: str, keys: dict[str, Any], words: str) -> None:
    keys = {key: tuple(value) if isinstance(value, list) else value for key, value in keys.items()}
    with pytest.raises(ValidationError, match=words):
        FIELDS[kind].model_validate(keys)


def test_an_integer_tensor_takes_no_fractions() -> None:
    for key, value in (("scale", 0.5), ("normalize", "standard"), ("missing", "mean"), ("missing", 0.5)):
        with pytest.raises(ValidationError, match="int64"):
            TensorField.model_validate({"column": "a", "dtype": "int64", key: value})


def test_cuts() -> None:
    def cut(rows: object) -> slice | int | None:
        return TensorField.model_validate({"column": "a", "rows": rows}).cut

    assert cut(":168") == slice(None, 168)
    assert cut("168:") == slice(168, None)
    assert cut(":-1") == slice(None, -1)
    assert cut("::2") == slice(None, None, 2)
    assert cut(-1) == -1
    assert cut(None) is None


def text(*values: str | None) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def test_class_numbers_are_kept_and_strangers_become_unknown() -> None:
    values = {"y": np.asarray([0, 3, 9])}
    assert made(CategoryField(column="y", num_classes=10), values).tolist() == [0, 3, 9]
    assert made(CategoryField(column="y", num_classes=4, unknown=1), values).tolist() == [0, 3, 1]
    lacks = {"y": np.asarray([0, np.nan, 2])}
    assert made(CategoryField(column="y", num_classes=4, unknown=3), lacks).tolist() == [0, 3, 2]
    with pytest.raises(BadValueError, match="`y` is 9, and 9 classes go from 0 to 8") as found:
        made(CategoryField(column="y", num_classes=9), values)
    assert (found.value.problem, found.value.row) == ("outside", 2)


def test_a_vocabulary_is_that_of_the_training_rows_sorted() -> None:
    training = {"city": text("rome", "oslo", "rome", "bonn")}
    field = CategoryField(column="city")
    assert made(field, training).tolist() == [2, 1, 2, 0]
    assert statistics(field, training) == {"vocabulary": [["bonn", "oslo", "rome"]]}
    with pytest.raises(BadValueError, match="`paris`, which is in none of the training rows"):
        made(field, {"city": text("rome", "paris")}, training)
    unknown = CategoryField(column="city", unknown=1)
    assert made(unknown, {"city": text("bonn", "paris", None, "oslo", "rome")}, training).tolist() == [0, 1, 1, 2, 3]
    assert unknown.row_spec([Column("city", "object")], statistics(unknown, training)).num_values == 4


def test_numbers_without_num_classes_have_a_vocabulary_too() -> None:
    training = {"year": np.asarray([2024, 2020, 2024])}
    assert made(CategoryField(column="year"), training).tolist() == [1, 0, 1]
    other = {"year": np.asarray([2020.0, 2021.0, np.nan])}
    assert made(CategoryField(column="year", unknown=0), other, training).tolist() == [1, 0, 0]


def test_the_most_frequent_words_keep_their_class() -> None:
    training = {"w": text("c", "a", "b", "b", "c", "c")}
    field = CategoryField(column="w", num_classes=3, unknown=0)
    assert made(field, training).tolist() == [2, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="`w` has 3 different values, and num_classes is 2"):
        statistics(CategoryField(column="w", num_classes=2), training)


def test_several_columns_have_their_own_sizes_and_one_range() -> None:
    values = {"user": np.asarray([7, 1]), "country": np.asarray([1, 9])}
    field = CategoryField(columns=("user", "country"), num_classes=(8, 3), unknown=0)
    assert made(field, values).tolist() == [[7, 1], [1, 0]]
    assert field.row_spec(columns_of(values), {}) == TensorSpec((2,), "int64", 8, ((0, 7), (0, 2)))
    shape_error = CategoryField(columns="*", num_classes=(8, 3, 2)).check(columns_of(values))
    assert shape_error is not None
    assert shape_error.message == "`num_classes` has 3 entries for 2 columns"


def test_rows_of_class_numbers() -> None:
    values = {"y": np.arange(6).reshape(2, 3)}
    assert made(CategoryField(column="y", num_classes=6), values).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_sizes_that_do_not_agree() -> None:
    with pytest.raises(ValidationError, match="`unknown` is class 4, and classes go from 0 to 3"):
        CategoryField(column="a", num_classes=4, unknown=4)
    with pytest.raises(ValueError, match="makes only 3 classes"):
        statistics(CategoryField(column="a", unknown=5), {"a": text("x", "y")})


def test_huge_whole_numbers_stay_exact() -> None:
    ids = np.asarray([9007199254740993, 9007199254740992, 5])
    assert made(CategoryField(column="id"), {"id": ids}).tolist() == [2, 1, 0]
    with pytest.raises(BadValueError, match=r"`id` is 36028797018963968 as float64.*2\^53") as found:
        made(CategoryField(column="id"), {"id": ids.astype(np.float64) * 4})
    assert found.value.problem == "outside"


@pytest.mark.parametrize("kind", ["int32", "int64", "uint32", "uint64"])
def test_whole_numbers_that_float32_would_merge_are_refused(kind: str) -> None:
    """Two ids were one."""
    ids = {"a": np.asarray([1, 2, 3], kind), "id": np.asarray([2**24, 2**24 + 1, 5], kind)}
    with pytest.raises(BadValueError, match="`id` is 16777217, and float32 would make it 16777216") as found:
        made(TensorField(columns=("a", "id")), ids)
    assert (found.value.problem, found.value.row) == ("outside", 1)
    assert "`dtype: int64`" in (found.value.help or "")
    del ids["a"]
    assert made(TensorField(column="id", dtype="int64"), ids).tolist() == [2**24, 2**24 + 1, 5]
    asked: list[dict[str, Any]] = [{"dtype": "float32"}, {"scale": 0.5}, {"normalize": "standard"}]
    for keys in asked:
        assert made(TensorField(column="id", **keys), ids).dtype == np.float32
    even = {"id": np.asarray([2**24 + 2, 2**30, 0], kind)}
    assert made(TensorField(column="id"), even).tolist() == [2**24 + 2, 2**30, 0]
    assert made(TensorField(column="id"), {"id": np.asarray([2**24 + 1.0])}).tolist() == [2**24]  # a measure


def test_a_negative_id_and_one_beside_missing_values() -> None:
    with pytest.raises(BadValueError, match="`id` is -16777217"):
        made(TensorField(column="id"), {"id": np.asarray([-(2**24) - 1])})
    field, column = TensorField(column="id", missing=0.5), Column("id", "int64")
    with pytest.raises(BadValueError, match="`id` is 16777219") as found:
        field.convert([np.asarray([np.nan, 2**24 + 3.0])], [column], {})
    assert found.value.row == 1
    assert field.convert([np.asarray([np.nan, 7.0])], [column], {}).tolist() == [0.5, 7.0]
