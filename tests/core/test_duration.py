"""Durations as users write them."""

from __future__ import annotations

import pytest

from declarative_train.core.duration import UNITS, Duration, interpret_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("100 steps", 100, "steps"),
        ("1 step", 1, "steps"),
        ("2 epochs", 2, "epochs"),
        ("0.5 epoch", 0.5, "epochs"),
        ("5%", 5, "%"),
        ("2.5 %", 2.5, "%"),
        ("1e6 tokens", 1e6, "tokens"),
        ("  30 minutes ", 30, "minutes"),
        ("3hours", 3, "hours"),
        ("64 samples", 64, "samples"),
    ],
)
def test_a_number_and_a_unit(text: str, value: float, unit: str) -> None:
    assert parse_duration(text) == Duration(value, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["100", "steps", "", "-1 steps", "1,5 epochs", "one epoch", "5 %%", "1 step 2"])
def test_what_is_no_duration_says_what_one_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration: write a number and a unit, such as `100 steps`"):
        parse_duration(text)


def test_an_unknown_unit_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="`weeks` is not a unit of duration") as caught:
        parse_duration("2 weeks")
    assert all(unit in str(caught.value) for unit in UNITS)


@pytest.mark.parametrize(
    ("text", "shown"), [("1 steps", "1 step"), ("2 step", "2 steps"), ("5 %", "5%"), ("0.5 epochs", "0.5 epochs")]
)
def test_shown_as_one_would_write_it(text: str, shown: str) -> None:
    assert str(parse_duration(text)) == shown
    assert parse_duration(shown) == parse_duration(text)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("7 steps", 7),
        ("2 epochs", 20),
        ("0.25 epochs", 3),  # 2.5 steps: up to a whole one
        ("0.001 epochs", 1),  # at least one
        ("1000 samples", 10),
        ("1001 samples", 11),
        ("12800 tokens", 8),
        ("10%", 30),  # 0.1 * 300 is 30.000000000000004
        ("1%", 3),
    ],
)
def test_steps(text: str, steps: int) -> None:
    duration = parse_duration(text)
    found = duration.steps(steps_per_epoch=10, global_batch_size=100, num_steps=300, tokens_per_sample=16)
    assert found == steps


@pytest.mark.parametrize("text", ["5 minutes", "1 hour", "5%", "100 tokens"])
def test_steps_of_what_has_none(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be converted to steps here"):
        parse_duration(text).steps(steps_per_epoch=10, global_batch_size=100, num_steps=None, tokens_per_sample=None)


def test_seconds() -> None:
    assert parse_duration("2 minutes").seconds == 120
    assert parse_duration("1.5 hours").seconds == 5400
    assert parse_duration("3 steps").seconds is None


@pytest.mark.parametrize(
    ("text", "wanted", "meant"),
    [
        ("2h", ("minutes", "hours"), "2 hours"),
        ("90m", ("minutes", "hours"), "90 minutes"),
        ("1 day", ("minutes", "hours"), "24 hours"),
        ("00:02:30:00", ("minutes", "hours"), "150 minutes"),
        ("10k steps", UNITS, "10000 steps"),
        ("1,000 iterations", UNITS, "1000 steps"),
        ("every epoch", UNITS, "1 epoch"),
        ("2h", ("steps", "epochs"), None),
        ("10", UNITS, None),
        ("soon", UNITS, None),
    ],
)
def test_what_another_form_means(text: str, wanted: tuple[str, ...], meant: str | None) -> None:
    found = interpret_duration(text, wanted)
    assert (None if found is None else str(found)) == meant
