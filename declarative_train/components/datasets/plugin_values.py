"""Conversion of the values that a plugin's code returns to the numpy array of a column. A value that does not fit is an
error.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from declarative_train.components.datasets.plugin_columns import ColumnKeys
from declarative_train.files.open_files import objects

_NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
Wrong = Callable[[int, str], Exception]
"""Function that makes the exception from the position of a value and a description of it."""


def keys_of(value: Any) -> ColumnKeys | str:
    """Return the dtype and shape (`ColumnKeys`) of a column that can hold `value`. If there is none, return a
    description of `value` for a message."""
    for dtype, is_one in _SINGLE.items():
        if value is not None and is_one(value):
            return ColumnKeys.model_validate({"dtype": dtype})
    number = _to_array(value)
    if number is None or number[0].dtype.name not in _NUMBERS:
        return describe_value(value)
    return ColumnKeys.model_validate({"dtype": number[0].dtype.name, "shape": number[0].shape})


def as_array(keys: ColumnKeys, values: Any, wrong: Wrong) -> np.ndarray:
    """Return the values of a column for N rows as an array (N, *shape). A missing number becomes nan, a missing text
    None, a missing date NaT. `wrong(index, description)`: makes the exception for a value that does not fit."""
    if keys.dtype in _SINGLE:
        return _singles(keys, values, wrong)
    wanted = np.dtype(keys.dtype)
    whole = None if isinstance(values, list) else _to_array(values)
    if whole is not None and whole[1]:  # an array of all rows
        if whole[0].dtype == wanted and whole[0].shape[1:] == keys.shape:
            return whole[0]
        raise wrong(0, _array_in_words(whole[0].dtype, whole[0].shape[1:]))
    found = np.empty((len(values), *keys.shape), wanted)
    missing = np.zeros(len(values), bool)
    for place, value in enumerate(values):
        if value is None and not keys.shape:
            missing[place] = True
            continue
        number = _to_array(value)
        if number is None or number[0].shape != keys.shape or not _fits(*number, wanted):
            raise wrong(place, describe_value(value))
        found[place] = number[0]
    if not missing.any():
        return found
    found = found if wanted.kind == "f" else found.astype(np.float64)
    found[missing] = np.nan
    return found


def _fits(value: np.ndarray, is_strict: bool, wanted: np.dtype[Any]) -> bool:
    """Return whether a column of dtype `wanted` can hold `value`. `is_strict`: the user's code returned an array or
    tensor, so its dtype must be `wanted`. If False, the code returned Python numbers: their kind must be suitable and,
    if `wanted` is an integer type, they must be in its range."""
    if is_strict:
        return value.dtype == wanted
    if wanted.kind in "iu" and value.dtype.kind in "iu" and value.size:
        info = np.iinfo(wanted)
        return bool(info.min <= int(value.min()) and int(value.max()) <= info.max)
    allowed = {"b": "b", "i": "ib", "u": "ib", "f": "fiub"}[wanted.kind]
    return value.dtype.kind in allowed or not value.size


def _to_array(value: Any) -> tuple[np.ndarray, bool] | None:
    """Convert a number, a list, a tuple, an array or a tensor to an array. Return (array, is_typed); `is_typed`: the
    value is an array or tensor, whose dtype the user chose. A list can contain texts too. Return None for any other
    value, and for a list whose items have different lengths."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value), True
    if isinstance(value, bool | int | float):
        try:
            return np.asarray(value), False
        except OverflowError:
            return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy(), True
    if isinstance(value, list | tuple) and value:
        try:
            return np.asarray(value), False
        except (ValueError, OverflowError):  # its items have different lengths
            return None
    return None


def _singles(keys: ColumnKeys, values: Any, wrong: Wrong) -> np.ndarray:
    is_one = _SINGLE[keys.dtype]
    given = list(values)
    for place, value in enumerate(given):
        if value is not None and not is_one(value):
            raise wrong(place, describe_value(value))
    if keys.dtype == "date":
        return np.asarray([np.datetime64("NaT" if value is None else value, "ns") for value in given], "datetime64[ns]")
    if keys.dtype == "bytes":
        given = [None if value is None else bytes(value) for value in given]
    return objects(given)


def _is_picture(value: Any) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


_SINGLE: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "bytes": lambda value: isinstance(value, bytes | bytearray | memoryview),
    "image": _is_picture,
    "date": lambda value: isinstance(value, datetime.date | np.datetime64),
}


def describe_value(value: Any) -> str:
    if value is None:
        return "None"
    number = _to_array(value)
    if number is None or number[0].dtype.name not in _NUMBERS:
        named = next((dtype for dtype, is_one in _SINGLE.items() if is_one(value)), None)
        words = {"text": "a text", "bytes": "bytes", "image": "a picture", "date": "a date"}
        return words[named] if named else f"a {type(value).__name__}"
    if not number[1] and not number[0].shape:
        return f"the {type(value).__name__} {value}"
    return _array_in_words(number[0].dtype, number[0].shape)


def _array_in_words(dtype: np.dtype[Any], shape: Sequence[int]) -> str:
    return f"{dtype.name} of shape {tuple(shape)}" if len(shape) else dtype.name


def same(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype == object:
        return all(a == b for a, b in zip(one, other, strict=True))
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fM"))
