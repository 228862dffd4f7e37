"""Counts, measures and times as people read them."""

from __future__ import annotations

import math

import pytest

from declarative_train.core.amounts import clock, format_count, format_number, in_ranges


def test_in_ranges() -> None:
    assert in_ranges([8, 3, 2, 0, 4]) == "0, 2 to 4, 8"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "step", "0 steps"),
        (1, "step", "1 step"),
        (2000, "step", "2,000 steps"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (2, "epoch", "2 epochs"),
        (3, "copy", "3 copies"),
        (2, "process", "2 processes"),
        (2, "GPU", "2 GPUs"),
        (2, "day", "2 days"),
        (2, "loader worker", "2 loader workers"),
    ],
)
def test_counted(count: int, noun: str, text: str) -> None:
    assert format_count(count, noun) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.0000"),
        (2.30258, "2.3026"),
        (-0.5, "-0.5000"),
        (0.098961, "0.0990"),
        (0.0012346, "0.001235"),
        (0.00012346, "0.0001235"),
        (0.000012345, "1.234e-05"),
        (-3e-9, "-3.000e-09"),
        (12345.678, "12345.6780"),
        (123456.0, "1.235e+05"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_numbers_keep_their_digits(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (42.4, "42 s"), (185, "3 min 5 s"), (7440, "2 h 4 min")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock(seconds) == text
