"""New rows in, named columns out: as the run read its own, in the order of the rows, all or nothing."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from declarative_train.app.main import main
from declarative_train.inference.input import InputError, Piece
from declarative_train.inference.predict import Prediction, Predictor
from declarative_train.inference.reading import open_input
from declarative_train.inference.trained import open_trained
from tests.inference.made_runs import HOUSE_COLUMNS, NAMES, WINE_COLUMNS, house_rows, wine_rows, write_csv


def predicted(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, str]]:
    assert main(["predict", *map(str, words)]) == 0, capsys.readouterr().err
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: object) -> str:
    assert main(["predict", *map(str, words)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def expected(run: Path, rows: list[list[Any]]) -> np.ndarray:
    """Probabilities by hand: the run's statistics, the run's words, the plain forward."""
    trained = open_trained(run)
    spec = trained.fields["features"]
    subtract, divide = (np.asarray(spec.statistics[name], np.float64) for name in ("subtract", "divide"))
    features = (np.asarray([row[:3] for row in rows], np.float64) - subtract) / divide
    sites = trained.class_names("site")
    assert sites is not None
    site = torch.tensor([sites.index(str(row[3])) for row in rows])
    (logits,) = trained.module()(torch.tensor(features, dtype=torch.float32), site)
    return np.asarray(logits.softmax(-1).numpy())


def test_class_names_and_probabilities_of_rows_without_their_target(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = wine_rows(count=40, seed=5)
    path = write_csv(tmp_path / "new.csv", ("site", *WINE_COLUMNS[:3]), [[row[3], *row[:3]] for row in rows])
    found = predicted(capsys, wine, path)
    assert list(found[0]) == ["class", "p_barbera", "p_barolo", "p_grignolino"]
    p = expected(wine, rows)
    np.testing.assert_allclose([[float(row[f"p_{name}"]) for name in sorted(NAMES)] for row in found], p, atol=1e-6)
    assert [row["class"] for row in found] == [sorted(NAMES)[each] for each in p.argmax(1)]
    assert np.mean([row["class"] == wanted[4] for row, wanted in zip(found, rows, strict=True)]) > 0.9


def test_numbers_come_in_the_unit_of_their_column(
    houses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = house_rows(count=30, seed=9)
    path = write_csv(tmp_path / "new.csv", HOUSE_COLUMNS[:2], [row[:2] for row in rows])
    found = predicted(capsys, houses, path)
    assert list(found[0]) == ["price", "sold", "p_sold"]
    prices = np.asarray([float(row["price"]) for row in found])
    assert np.abs(prices - [row[2] for row in rows]).mean() < 0.1 * np.std([row[2] for row in rows])  # type: ignore[arg-type]
    for row in found:
        assert int(row["sold"]) == (float(row["p_sold"]) > 0.5)
    assert np.mean([int(row["sold"]) == wanted[3] for row, wanted in zip(found, rows, strict=True)]) > 0.85


@pytest.mark.packs
def test_every_kind_of_file_gives_the_same(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = wine_rows(count=50, seed=3)
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    table = pa.table(dict(zip(WINE_COLUMNS, zip(*rows, strict=True), strict=True)))
    parquet.write_table(table, tmp_path / "new.parquet", row_group_size=7)
    (tmp_path / "new.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    np.savez(tmp_path / "new.npz", **{name: np.asarray(table.column(name).to_pylist()) for name in WINE_COLUMNS[:3]})
    known = predicted(capsys, wine, path)
    assert len(known) == 50
    with closing(sqlite3.connect(tmp_path / "new.db")) as file:
        file.execute(f"CREATE TABLE wines ({', '.join(WINE_COLUMNS)})")
        file.executemany(f"INSERT INTO wines VALUES ({', '.join('?' * len(WINE_COLUMNS))})", rows)
        file.commit()
    for name in ("new.parquet", "new.jsonl", "new.db"):
        assert predicted(capsys, wine, tmp_path / name) == known
    with closing(sqlite3.connect(tmp_path / "new.db")) as file:
        file.execute("CREATE VIEW others AS SELECT * FROM wines")
    assert "more than one table, or none\nhelp: it has `others`, `wines`" in refused(
        capsys, 1, wine, tmp_path / "new.db"
    )
    write_csv(tmp_path / "part_1.csv", WINE_COLUMNS, rows[:20])
    write_csv(tmp_path / "part_2.csv", WINE_COLUMNS, rows[20:])
    assert predicted(capsys, wine, tmp_path / "part_*.csv") == known
    assert predicted(capsys, wine, tmp_path / "part_1.csv", tmp_path / "part_2.csv") == known
    shutil.copy(path, tmp_path / "new.data")
    assert predicted(capsys, wine, tmp_path / "new.data") == known
    assert "lacks the column `site`" in refused(capsys, 1, wine, tmp_path / "new.npz")


def test_a_csv_is_written_as_those_of_the_run(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = wine_rows(count=20, seed=3)
    known = predicted(capsys, wine, write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows))
    source = open_trained(wine).plan.data.source | {"delimiter": ";", "decimal": ",", "missing_values": ["?"]}
    text = "\n".join(";".join(str(each).replace(".", ",") for each in row) for row in [WINE_COLUMNS, *rows])
    (tmp_path / "european.csv").write_text(text + "\n")
    prediction, european = Prediction(open_trained(wine)), str(tmp_path / "european.csv")
    table = pa.concat_tables(prediction.tables(prediction.of_rows(open_input(european, source))))
    assert table.column("class").to_pylist() == [row["class"] for row in known]
    (tmp_path / "european.csv").write_text(text.replace("hill", "?") + "\n")
    with pytest.raises(InputError, match="`site` misses"):
        list(prediction.tables(prediction.of_rows(open_input(european, source))))


def test_standard_input(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=9))
    known = predicted(capsys, wine, path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert predicted(capsys, wine, "-") == known


def test_each_output_file_holds_the_same(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=12))
    for kind in ("csv", "parquet", "jsonl"):
        out = tmp_path / f"out.{kind}"
        assert main(["predict", str(wine), str(path), "--out", str(out), "--output", "act", "--keep", "kind"]) == 0
        assert "12 rows of kind, act, by " in capsys.readouterr().err
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.column("kind").to_pylist() == [row[4] for row in wine_rows(count=12)]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["act"] for line in lines] == table.column("act").to_pylist()
    assert len(lines[0]["act"]) == 8
    with (tmp_path / "out.csv").open() as stream:
        flat = list(csv.DictReader(stream))
    assert list(flat[0]) == ["kind", *(f"act_{at}" for at in range(8))]
    assert [float(flat[3][f"act_{at}"]) for at in range(8)] == pytest.approx(lines[3]["act"])
    assert sorted(each.name for each in tmp_path.iterdir()) == ["new.csv", "out.csv", "out.jsonl", "out.parquet"]


def test_ranks_answer_in_the_order_of_the_rows(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = wine_rows(count=500, seed=8)
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    alone = predicted(capsys, wine, path, "--batch-size", 16, "--keep", "f1")
    shared = predicted(capsys, wine, path, "--batch-size", 16, "--keep", "f1", "--ranks", 2)
    assert shared == alone
    assert [float(row["f1"]) for row in shared] == [row[0] for row in rows]


@pytest.mark.parametrize("kind", ["csv", "quoted", "jsonl", "gz", "parquet"])
def test_a_rank_reads_its_own_pieces(wine: Path, tmp_path: Path, kind: str) -> None:
    """Whoever shares them out reads no values, where lines end rows; and they are cut alike for one process."""
    rows = wine_rows(count=500, seed=8)
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    if kind == "quoted":
        lines = path.read_text().splitlines()
        lines[300] = lines[300].replace(lines[300].split(",")[-1], '"two\nlines"')
        path.write_text("\n".join(lines) + "\n")
    elif kind == "gz":
        path = tmp_path / "new.csv.gz"
        path.write_bytes(gzip.compress((tmp_path / "new.csv").read_bytes()))
    elif kind == "jsonl":
        path = tmp_path / "new.jsonl"
        path.write_text("".join(json.dumps(dict(zip(WINE_COLUMNS, row, strict=True))) + "\n\n" for row in rows))
    elif kind == "parquet":
        path = tmp_path / "new.parquet"
        parquet.write_table(pa.table(dict(zip(WINE_COLUMNS, zip(*rows, strict=True), strict=True))), path)
    opened = open_input(str(path), {})
    pieces = list(opened.pieces(["f1", "site"], 64))
    assert [piece.start for piece in pieces] == [0, *np.cumsum([piece.num_rows for piece in pieces[:-1]]).tolist()]
    assert sum(piece.num_rows for piece in pieces) == 500
    assert max(piece.num_rows for piece in pieces) == 64
    size = len(pickle.dumps(pieces))
    assert size < 3_000 or kind in ("quoted", "gz")  # their values lie in the pieces
    found = [opened.read_piece(piece, ["f1", "site"]) for piece in pickle.loads(pickle.dumps(pieces))]
    assert [float(str(value)) for chunk in found for value in chunk.columns["f1"]] == [row[0] for row in rows]
    assert found[3].place(0) == f"row {pieces[3].start + 1} of {path}"


def test_a_rank_that_is_started_anew_opens_the_files_itself(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=300, seed=8))
    alone = predicted(capsys, wine, path, "--batch-size", 16)
    monkeypatch.setattr("declarative_train.run.processes.start_method", lambda kind: "spawn")
    assert predicted(capsys, wine, path, "--batch-size", 16, "--ranks", 2) == alone


def test_the_first_error_of_ranks_is_told_and_nothing_is_written(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = wine_rows(count=900, seed=8)
    rows[700][3], rows[300][3] = "lake", "pond"
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    said = refused(capsys, 1, wine, path, "--batch-size", 16, "--ranks", 2, "-o", tmp_path / "out.csv")
    assert f"row 301 of {path}: field `site`: `site` is `pond`" in said
    assert "lake" not in said
    assert [each.name for each in tmp_path.iterdir()] == ["new.csv"]


def test_a_rank_that_is_lost_ends_all(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=900, seed=8))
    parent, answer = os.getpid(), Predictor.__call__

    def dies(self: Predictor, piece: Piece) -> Any:
        if os.getpid() != parent and piece.start > 300:
            os._exit(9)
        return answer(self, piece)

    monkeypatch.setattr(Predictor, "__call__", dies)
    said = refused(capsys, 3, wine, path, "--batch-size", 16, "--ranks", 2, "-o", tmp_path / "out.csv")
    assert "a rank was lost" in said
    assert [each.name for each in tmp_path.iterdir()] == ["new.csv"]


def test_a_kept_column_keeps_its_name(houses: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = house_rows(count=5, seed=9)
    path = write_csv(tmp_path / "new.csv", HOUSE_COLUMNS, rows)
    found = predicted(capsys, houses, path, "--keep", "*")
    assert list(found[0]) == [*HOUSE_COLUMNS, "price_predicted", "sold_predicted", "p_sold"]
    assert [float(row["price"]) for row in found] == [row[2] for row in rows]


def test_a_frame_in_memory(wine: Path) -> None:
    rows = wine_rows(count=20, seed=4)
    table = pa.table(dict(zip(WINE_COLUMNS, zip(*rows, strict=True), strict=True)))
    prediction = Prediction(open_trained(wine))
    found = pa.concat_tables(prediction.tables(prediction.of_frame(table)))
    p = np.stack([found.column(f"p_{name}").to_numpy() for name in sorted(NAMES)], axis=1)
    np.testing.assert_allclose(p, expected(wine, rows), atol=1e-6)


def test_a_long_file_is_read_in_pieces(
    wine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = wine_rows(count=300, seed=8)
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)
    whole = predicted(capsys, wine, path)
    monkeypatch.setattr("declarative_train.inference.text_files._BLOCK_BYTES", 2_000)
    chunks = list(open_input(str(path), {}).read(["f1", "kind"]))
    assert len(chunks) > 3
    assert [chunk.start for chunk in chunks] == list(np.cumsum([0, *(chunk.num_rows for chunk in chunks[:-1])]))
    again = predicted(capsys, wine, path)
    assert [row["class"] for row in again] == [row["class"] for row in whole]
    assert [float(row["p_barolo"]) for row in again] == pytest.approx(
        [float(row["p_barolo"]) for row in whole], abs=1e-6
    )
    rows[250][3] = "lake"
    write_csv(path, WINE_COLUMNS, rows)
    assert f"row 251 of {path}: field `site`: `site` is `lake`" in refused(
        capsys, 1, wine, path, "-o", tmp_path / "o.csv"
    )
    assert not (tmp_path / "o.csv").exists()
    assert [each.name for each in tmp_path.iterdir()] == ["new.csv"]


def test_rows_without_any_row_give_the_names_alone(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, [])
    assert main(["predict", str(wine), str(path)]) == 0
    assert capsys.readouterr().out == "class,p_barbera,p_barolo,p_grignolino\n"


def spoilt(tmp_path: Path, row: int, column: int, value: object) -> Path:
    rows = wine_rows(count=10)
    rows[row][column] = value
    return write_csv(tmp_path / "new.csv", WINE_COLUMNS, rows)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        (1, "", "row 4 of {}: field `features`: `f2` misses a value"),
        (1, "abc", "row 4 of {}: `f2` is `abc`, but the model needs a number"),
        (1, "inf", "row 4 of {}: field `features`: `f2` is inf"),
        (3, "", "row 4 of {}: field `site`: `site` misses a value"),
        (3, "Hill", "row 4 of {}: field `site`: `site` is `Hill`, which is in none of the training rows"),
    ],
)
def test_a_value_that_the_model_cannot_take(
    wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], column: int, value: object, message: str
) -> None:
    path = spoilt(tmp_path, 3, column, value)
    said = refused(capsys, 1, wine, path)
    assert message.format(path) in said
    assert "help: " in said or "needs a number" in message


def test_wrong_uses_of_the_command(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=3))
    assert "there is no run" in refused(capsys, 2, tmp_path / "none", path)
    assert "there is no file" in refused(capsys, 2, wine, tmp_path / "none.csv")
    assert "let it end in one of .csv, .parquet, .jsonl" in refused(capsys, 2, wine, path, "-o", tmp_path / "o.xls")
    assert "no node `logit`" in refused(capsys, 2, wine, path, "--output", "logit")
    assert "no such column" in refused(capsys, 2, wine, path, "--keep", "colour")
    assert "--device nowhere cannot be used here" in refused(capsys, 2, wine, path, "--device", "nowhere")
    write_csv(path, WINE_COLUMNS[1:], [row[1:] for row in wine_rows(count=3)])
    assert "lacks the column `f1`, which the run's fields read\nhelp: known: f2, f3, kind, site" in refused(
        capsys, 1, wine, path
    )
    path.write_text("")
    assert "is empty" in refused(capsys, 1, wine, path)
    path.write_text("f1,f2,f3,site\n1,2,3,hill\n1,2\n")
    assert f"line 3 of {path} has 2 values where the others have 4" in refused(capsys, 1, wine, path)
    (wine / "checkpoints").rename(wine / "away")
    try:
        assert "there is no checkpoint in it" in refused(capsys, 2, wine, path)
    finally:
        (wine / "away").rename(wine / "checkpoints")


def test_a_damaged_run_has_failed(wine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_csv(tmp_path / "new.csv", WINE_COLUMNS, wine_rows(count=3))
    place = shutil.copytree(max((wine / "checkpoints").iterdir()), tmp_path / "step_00000009")
    (place / "plan.json").write_text((place / "plan.json").read_text().replace("barolo", "bArolo"))
    assert "the checksum of plan.json does not match" in refused(capsys, 3, place, path)
