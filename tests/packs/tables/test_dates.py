"""Field `type: date`: parts and cycles of dates, texts and counts, statistics, rows in messages."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declarative_train as dt
from declarative_train.components.data import BadValueError, Column, Field, NoStatisticsError
from declarative_train.components.fields import FIELDS

DAYS = ["2024-01-01", "2024-02-29", "2024-12-31", "2025-07-05T18:30:00"]  # Monday, Thursday, Tuesday, Saturday


def texts(*values: str | None) -> np.ndarray:
    return np.array(values, object)


def dates(*values: str) -> np.ndarray:
    return np.array(values, "datetime64[ns]")


def field(**keys: Any) -> Field:
    return FIELDS.read({"type": "date", "column": "when", **keys})


def convert(found: Field, values: np.ndarray, training: np.ndarray | None = None) -> np.ndarray:
    columns = [Column("when", str(values.dtype))]
    assert found.check(columns) is None
    tally = found.tally(columns)
    statistics: dict[str, object] = {}
    if tally is not None:
        rows = values if training is None else training
        for start in range(0, len(rows), 2):
            tally.add([rows[start : start + 2]])
        statistics = json.loads(json.dumps(tally.result()))
    made = found.convert([values], columns, statistics)
    assert made.shape[1:] == found.row_spec(columns, statistics).shape
    assert made.dtype == np.float32
    return made


@pytest.mark.parametrize("values", [texts(*DAYS), dates(*DAYS)])
def test_parts_are_those_of_the_calendar(values: np.ndarray) -> None:
    made = convert(field(parts=["month", "day", "yearday", "weekday", "hour"], cycles=False), values)
    back = (made + 1) / 2 * [11, 30, 365, 6, 24] + [1, 1, 1, 0, 0]
    np.testing.assert_allclose(
        back, [[1, 1, 1, 0, 0], [2, 29, 60, 3, 0], [12, 31, 366, 1, 0], [7, 5, 186, 5, 18.5]], atol=1e-4
    )


def test_a_cycle_puts_its_ends_next_to_each_other() -> None:
    made = convert(field(parts=["month"]), texts("2024-01-15", "2024-12-15", "2024-07-15"))
    np.testing.assert_allclose(made[0], [0, 1], atol=1e-6)
    np.testing.assert_allclose(made[1], [math.sin(2 * math.pi * 11 / 12), math.cos(2 * math.pi * 11 / 12)], atol=1e-6)
    assert np.linalg.norm(made[0] - made[1]) < np.linalg.norm(made[0] - made[2])


def test_the_time_is_normalised_by_the_training_rows_in_any_chunks() -> None:
    training = dates(*(f"2024-03-{day:02d}" for day in range(1, 8)))
    made = convert(field(parts=["time"]), dates("2024-03-04", "2024-03-08"), training)
    np.testing.assert_allclose(made[:, 0], [0, 2], atol=1e-6)  # the deviation of 1 to 7 is 2
    seconds = dates(*(f"2024-03-01T00:00:{second:02d}" for second in range(1, 8)))
    np.testing.assert_allclose(convert(field(parts=["time"]), seconds)[:, 0], np.arange(-3, 4) / 2, atol=1e-3)


@pytest.mark.parametrize(
    ("format", "values"),
    [
        ("%d.%m.%Y", texts("01.01.2024", "05.07.2025")),
        ("seconds", np.array([1704067200, 1751673600])),
        ("milliseconds", np.array([1704067200000, 1751673600000])),
        ("days", np.array([19723.0, 20274.0])),
        ("%Y%m%d", np.array([20240101, 20250705])),
        ("seconds", texts("1704067200", "1751673600")),
        (None, texts("2024-01-01T01:00:00+01:00", "2025-07-05")),
    ],
)
def test_formats_of_texts_and_numbers(format: str | None, values: np.ndarray) -> None:
    made = convert(field(format=format), values)
    np.testing.assert_allclose(made, convert(field(), dates("2024-01-01", "2025-07-05")), atol=1e-6)


def test_a_missing_date_is_an_error_or_zeros() -> None:
    for values in (texts("2024-01-01", None, "2024-01-03"), dates("2024-01-01", "NaT", "2024-01-03")):
        with pytest.raises(BadValueError, match="has no date") as caught:
            convert(field(), values)
        assert caught.value.row == 1
        made = convert(field(missing="zero"), values)
        assert not made[1].any()
        np.testing.assert_allclose(made[[0, 2], 0], [-1, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("keys", "values", "words"),
    [
        ({}, texts("2024-01-01", "01.02.2024"), "`when` is `01.02.2024`, which is not a date in the format ISO 8601"),
        ({"format": "%d.%m.%Y"}, texts("01.02.2024", "31.02.2024"), "`31.02.2024`"),
        ({"format": "seconds"}, np.array([0.0, 1e300]), "`1e\\+300`"),
    ],
)
def test_a_value_that_is_no_date_is_named_with_its_row(keys: dict[str, Any], values: np.ndarray, words: str) -> None:
    with pytest.raises(BadValueError, match=words) as caught:
        convert(field(**keys), values)
    assert caught.value.row == 1
    assert caught.value.key == "format"


def test_columns_that_are_no_dates() -> None:
    found = field().check([Column("when", "int64")])
    assert found is not None
    assert "nothing says which dates" in found.message
    for column in (Column("when", "bytes"), Column("when", "bool"), Column("when", "datetime64[ns]", (2,))):
        assert field().check([column]) is not None
    with pytest.raises(NoStatisticsError, match="has no date in the training rows"):
        convert(field(missing="zero"), texts(None, None))
    with pytest.raises(ValueError, match="has no code"):
        field(format="unix")


def test_a_run_keeps_the_statistics_and_reads_new_dates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = np.datetime64("2022-01-01") + np.arange(400)
    month = days.astype("datetime64[M]").astype(int) % 12
    rows = "".join(f"{day},{int(6 <= each <= 8)}\n" for day, each in zip(days, month, strict=True))
    Path("days.csv").write_text("day,summer\n" + rows)
    Path("days.yaml").write_text(
        "name: days\n"
        "data:\n"
        "  source: {type: csv, path: days.csv}\n"
        "  fields:\n"
        "    when: {type: date, columns: [day], parts: [time, month]}\n"
        "    summer: {type: category, column: summer}\n"
        "  split: {validation: 0.2}\n"
        "model: {graph: {net: {type: mlp, hidden: [16], out_features: 2, input: when}}}\n"
        "objective: {loss: {type: cross_entropy, input: net, target: summer}, metrics: [accuracy]}\n"
        "training: {epochs: 20, global_batch_size: 20, optimizer: {type: adam, lr: 1e-2}}\n"
        "evaluation: {every: 20 epochs}\n"
        "layout: {device: cpu}\n"
    )
    recipe = dt.load("days.yaml")
    assert list(recipe.lint()) == []
    run = recipe.run(quiet=True)
    assert run.result["validation/accuracy"] > 0.95
    Path("new.jsonl").write_text('{"day": "2022-07-09"}\n{"day": "2022-12-24"}\n')  # texts, not dates
    Path("new.csv").write_text("day\n2022-07-09\n2022-12-24\n")
    for file in ("new.jsonl", "new.csv"):
        assert [int(each) for each in run.predict(file)["class"]] == [1, 0]
    assert [int(each) for each in run.predict({"day": days[[200, 20]]})["class"]] == [1, 0]
    with pytest.raises(dt.DtrainError, match="`day` is `tomorrow`"):
        run.predict({"day": ["2024-01-01", "tomorrow"]})
