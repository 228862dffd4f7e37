"""Predictions for windows of new rows: which rows each is for, and the numbers of a plain forward."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from declarative_train.app.main import main
from declarative_train.inference.evaluate import evaluate
from declarative_train.inference.predict import Prediction
from declarative_train.inference.trained import open_trained
from tests.inference.made_runs import trained, write_csv

LOAD = """
name: load
data:
  source: {type: csv, path: load.csv}
  window: {length: 10, stride: 3, by: meter, sort: t}
  fields:
    past: {columns: [load, heat], rows: ":8", normalize: standard}
    future: {column: load, rows: "8:", normalize: standard}
  split: {validation: {type: last, fraction: 0.25}}
model:
  graph:
    flat: flatten(past)
    guess: {type: linear, out_features: 2}
objective:
  loss: {type: mse, input: guess, target: future}
training: {epochs: 3, global_batch_size: 16, optimizer: {type: adam, lr: 0.02}}
layout: {device: cpu}
logging: {dir: runs}
"""

LETTERS = """
name: letters
data:
  source: {type: text, path: letters.txt, tokenizer: bytes}
  window: {length: 9, stride: 8}
  fields:
    tokens: {column: tokens, rows: ":-1"}
    next: {column: tokens, rows: "1:"}
model:
  graph:
    embed: {type: embedding, embedding_dim: 8, input: tokens}
    logits: {type: linear, out_features: 256}
objective:
  loss: {type: cross_entropy, input: logits, target: next}
training: {steps: 10, global_batch_size: 8, optimizer: {type: adam, lr: 0.02}}
layout: {device: cpu}
logging: {dir: runs}
"""

COLUMNS = ("t", "meter", "load", "heat")


def load_rows(count: int, meters: str = "ab", seed: int = 0) -> list[list[Any]]:
    """The rows of the meters in turn, later ones first."""
    random = np.random.default_rng(seed)
    rows = [
        [t, meter, 50 + 10 * np.sin(t / 3) + random.normal(), random.normal()] for t in range(count) for meter in meters
    ]
    return [[t, meter, round(load, 4), round(heat, 4)] for t, meter, load, heat in reversed(rows)]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("load")
    write_csv(folder / "load.csv", COLUMNS, load_rows(80))
    return trained(folder, LOAD)


def predicted(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, str]]:
    assert main(["predict", *map(str, words)]) == 0, capsys.readouterr().err
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    assert main(["predict", *map(str, words)]) == code
    return capsys.readouterr().err


def by_hand(run: Path, past: np.ndarray) -> np.ndarray:
    """(2,) of (8, 2): the run's statistics, the plain forward, back to the column's unit."""
    model = open_trained(run)
    spec = model.fields["past"]
    subtract, divide = (np.asarray(spec.statistics[name], np.float64) for name in ("subtract", "divide"))
    (guess,) = model.network(["guess"]).module(torch.tensor((past - subtract) / divide, dtype=torch.float32)[None])
    unit = model.unit("future")
    assert unit is not None
    return np.asarray(guess[0].double() * unit.multiply[0] + unit.add[0])


def test_a_forecast_reads_the_past_alone_up_to_the_last_row(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = load_rows(16, seed=3)
    path = write_csv(tmp_path / "new.csv", COLUMNS, rows)
    found = predicted(capsys, load, path, "--keep", "t")
    assert list(found[0]) == ["first_row", "last_row", "meter", "t", "future_0", "future_1"]
    in_time = {meter: sorted((row for row in rows if row[1] == meter), key=lambda row: row[0]) for meter in "ab"}
    # every 3 rows from the first on, 8 at a time; then the 8 that end with the last of 16
    assert [(row["meter"], int(row["t"])) for row in found] == [(m, t) for m in "ab" for t in (7, 10, 13, 15)]
    for row in found:
        end = int(row["t"]) + 1
        window = in_time[row["meter"]][end - 8 : end]
        assert [rows.index(window[0]) + 1, rows.index(window[-1]) + 1] == [int(row["first_row"]), int(row["last_row"])]
        wanted = by_hand(load, np.asarray([each[2:] for each in window], np.float64))
        assert [float(row["future_0"]), float(row["future_1"])] == pytest.approx(wanted.tolist(), rel=1e-5)


def test_they_are_those_that_an_evaluation_judges(load: Path, tmp_path: Path) -> None:
    """Of windows with a future: the errors by hand are those that `dtrain evaluate` tells."""
    rows = sorted(load_rows(34, meters="a", seed=4))
    path = write_csv(tmp_path / "new.csv", COLUMNS, rows)
    model = open_trained(load)
    prediction = Prediction(model)
    table = pa.concat_tables(prediction.tables(prediction.open_files(str(path))))
    whole = [row for row in table.to_pylist() if row["last_row"] + 2 <= len(rows)]
    apart = [row["future"][at] - rows[row["last_row"] + at][2] for row in whole for at in range(2)]
    told = evaluate(model, data=str(path))
    assert told.num_samples == len(whole) == 9
    assert told.reports[0].metrics["mae"] == pytest.approx(np.abs(apart).mean(), rel=1e-6)


def test_every_kind_of_input_gives_the_same(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = load_rows(12, seed=5)
    path = write_csv(tmp_path / "new.csv", COLUMNS, rows)
    known = predicted(capsys, load, path)
    frame = pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))
    parquet.write_table(frame, tmp_path / "new.parquet")
    assert predicted(capsys, load, tmp_path / "new.parquet") == known
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert predicted(capsys, load, "-") == known
    prediction = Prediction(open_trained(load))
    made = pa.concat_tables(prediction.tables(prediction.of_frame(frame)))
    assert made.column("last_row").to_pylist() == [int(row["last_row"]) for row in known]
    np.testing.assert_allclose(
        np.asarray(made.column("future").to_pylist()),
        [[float(row[f"future_{at}"]) for at in (0, 1)] for row in known],
        rtol=1e-6,
    )


def test_ranks_give_the_same_rows_in_the_same_order(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "new.csv", COLUMNS, load_rows(400, seed=6))
    alone = predicted(capsys, load, path, "--batch-size", 16)
    assert len(alone) > 200
    assert predicted(capsys, load, path, "--batch-size", 16, "--ranks", 2) == alone


@pytest.mark.packs
def test_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letters.txt").write_text("abcdefgh" * 40)
    run = trained(tmp_path, LETTERS)
    (tmp_path / "new.txt").write_text("hgfedcba" * 3 + "h")
    found = predicted(capsys, run, tmp_path / "new.txt", "--output", "embed")
    assert [(row["first_row"], row["last_row"]) for row in found] == [
        ("1", "8"),
        ("9", "16"),
        ("17", "24"),
        ("18", "25"),
    ]
    tokens = torch.tensor([list(b"hgfedcba")])
    network = open_trained(run).network(["embed"])
    (embedded,) = network.module(tokens)
    flat = [float(found[0][f"embed_{at}"]) for at in range(64)]
    assert flat == pytest.approx(embedded.flatten().tolist(), abs=1e-6)
    said = predicted(capsys, run, tmp_path / "new.txt")
    assert {"class_0", "class_7", "p_0", "p_7"} <= said[0].keys()


@pytest.mark.packs
def test_what_cannot_be_is_said(load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = load_rows(16)
    short = write_csv(tmp_path / "short.csv", COLUMNS, load_rows(5))
    assert f"{short} has no 8 rows that follow each other, as many as the model reads" in refused(
        capsys, 1, load, short
    )
    less = write_csv(tmp_path / "less.csv", ("t", "load", "heat"), [[t, a, b] for t, _, a, b in rows])
    assert "lacks the column `meter`, by which windows are cut" in refused(capsys, 1, load, less)
    other = write_csv(tmp_path / "other.csv", ("t", "meter", "load", "cold"), rows)
    assert "the column `heat` of field `past` is missing" in refused(capsys, 1, load, other)
    rows[3][2] = ""
    missing = write_csv(tmp_path / "missing.csv", COLUMNS, rows)
    assert "row 4 of" in refused(capsys, 1, load, missing)
    assert "no such column" in refused(
        capsys, 2, load, write_csv(tmp_path / "x.csv", COLUMNS, load_rows(9)), "--keep", "x"
    )
    (tmp_path / "a.png").write_bytes(b"")
    assert "the windows of this run are of csv rows, but" in refused(capsys, 2, load, tmp_path / "a.png")
    empty = write_csv(tmp_path / "empty.csv", COLUMNS, [])
    assert main(["predict", str(load), str(empty)]) == 0
    assert capsys.readouterr().out == "future_0,future_1\n"


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_kept_column_is_the_text_of_the_file(
    load: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    rows = [[*row, f"2025-01-01T{row[0]:02}:00:00+02:00"] for row in load_rows(12, seed=5)]
    names = [*COLUMNS, "time"]
    path = write_csv(tmp_path / "new.csv", names, rows)
    if ending == "jsonl":
        path = tmp_path / "new.jsonl"
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    found = predicted(capsys, load, path, "--keep", "time")
    assert [row["time"] for row in found] == [rows[int(row["last_row"]) - 1][-1] for row in found]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_kept_date_of_a_parquet_file_is_text_in_a_text_file(load: Path, tmp_path: Path, ending: str) -> None:
    rows = load_rows(12, seed=5)
    frame = pa.table(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))
    times = pa.array([row[0] * 3600 for row in rows]).cast(pa.timestamp("s"))
    parquet.write_table(frame.append_column("time", times), tmp_path / "new.parquet")
    out = tmp_path / f"out.{ending}"
    assert main(["predict", str(load), str(tmp_path / "new.parquet"), "--keep", "time", "-o", str(out)]) == 0
    assert "1970-01-01T07:00:00" in re.split('[,"]', out.read_text())
