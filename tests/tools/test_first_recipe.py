"""`dtrain init --from`: a table in, a recipe out that lints clean; what cannot be learned from has one message."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.__main__ import main
from declarative_train.run.event import EvaluationDone
from declarative_train.run.sinks.jsonl import read_events

Captured = pytest.CaptureFixture[str]
Row = dict[str, object]


def flowers(rows: int = 150) -> list[Row]:
    """Three classes whose numbers are apart."""
    draw = random.Random(0)
    kinds = ("rose", "tulip", "aster")
    return [
        {"length": draw.gauss(2 * (at % 3), 0.3), "width": draw.gauss(-(at % 3), 0.3), "kind": kinds[at % 3]}
        for at in range(rows)
    ]


def people(rows: int = 400) -> list[Row]:
    """All kinds of columns; `churn` hangs on `city` and `age`."""
    draw = random.Random(1)
    found = []
    for at in range(rows):
        city, age = draw.choice(["Bonn", "Ulm", "Rom"]), draw.uniform(18, 80)
        churn = "yes" if (city == "Ulm") * 20 + age + draw.gauss(0, 5) > 70 else "no"
        found.append(
            {
                "customer_id": f"C{at:05d}",
                "joined": f"20{10 + at % 9}-0{1 + at % 9}-11",
                "city": None if at % 40 == 0 else city,
                "age": "?" if at % 50 == 3 else f"{age:.1f}",
                "active": draw.choice(["true", "false"]),
                "score": None if at % 30 == 1 else round(draw.gauss(0, 1), 3),
                "country": "DE",
                "outcome": {"yes": "lost", "no": "kept"}[churn],
                "remark": f"called at {at}",
                "price": round(1000 * age + draw.gauss(0, 500), 2),
                "churn": churn,
            }
        )
    return found


def csv(path: Path, rows: Sequence[Row], delimiter: str = ",", begin: str = "") -> Path:
    lines = [delimiter.join(rows[0])]
    lines += [delimiter.join("" if value is None else str(value) for value in row.values()) for row in rows]
    path.write_text(begin + "\n".join(lines) + "\n", encoding="utf-8")
    return path


def init(data: Path, target: str, *words: str) -> Path:
    """The recipe that is written next to the data."""
    recipe = data.with_suffix(".yaml")
    assert main(["init", "--from", str(data), "--target", target, "-o", str(recipe), "--force", *words]) == 0
    return recipe


def problems(recipe: Path) -> list[str]:
    loaded = recipe_room.load(str(recipe))
    found = list(loaded.diagnostics)
    if loaded.recipe is not None:
        found += planner.compile(loaded.recipe, offline=True)[1]
    return [f"{item.code} {item.message}" for item in found]


def test_classes_are_learned_from_a_clean_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = init(csv(tmp_path / "flowers.csv", flowers()), "kind")
    text = recipe.read_text()
    assert "{type: stratified, fraction: 0.2, column: kind}" in text
    assert "aster, rose, tulip" in text
    assert main(["run", str(recipe), "--quiet", "--set", "training.epochs=24"]) == 0
    (log,) = tmp_path.glob("runs/flowers/*/events.jsonl")
    last = [event for event in read_events(log) if isinstance(event, EvaluationDone)][-1]
    assert last.values["validation/accuracy"] > 0.95
    assert problems(recipe) == []


def test_a_dirty_table_is_read_and_each_choice_has_its_reason(tmp_path: Path) -> None:
    data = csv(tmp_path / "people.csv", people(), ";", begin="\ufeff")
    text = init(data, "churn").read_text()
    assert 'source: {type: csv, path: people.csv, delimiter: ";", missing_values: ["?"]}' in text
    assert "columns: [age, active, score, price]" in text
    assert "columns: [city]" in text
    for said in (
        "- customer_id: an id: it differs in each row",
        "- country: always `DE`",
        "- outcome: it repeats `churn`",
        "- remark: text, and 400 of 400 rows",
    ):
        assert said in text
    assert "      type: date\n      columns: [joined]\n      parts: [time, month]\n" in text
    assert "joined: {type: concat, inputs: [numbers, vectors, dates]}" in text
    assert "metrics: [accuracy, auroc]" in text
    assert "out_features: 2" in text


def test_numbers_are_learned_beside_words(tmp_path: Path, capsys: Captured) -> None:
    rows = [{key: row[key] for key in ("city", "age", "score", "price")} for row in people()]
    recipe = init(csv(tmp_path / "people.csv", rows), "price")
    assert "price: {columns: [price], normalize: standard}" in recipe.read_text()
    assert "metrics: [rmse, mae, r2]" in recipe.read_text()
    assert problems(recipe) == []


@pytest.mark.parametrize(("is_skewed", "loss"), [(True, "mse"), (False, "huber")])
def test_the_loss_of_numbers_with_tails_depends_on_their_sides(tmp_path: Path, is_skewed: bool, loss: str) -> None:
    """Amounts, which reach far to one side, have tails too; and a few errors on both sides of other numbers."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=400)
    errors = np.where(np.arange(400) % 80 == 0, 30.0, 0.0) * rng.normal(size=400)
    amounts = np.exp(1.5 * size) if is_skewed else size + errors
    rows = [{"size": f"{one:.3f}", "amount": f"{other:.3f}"} for one, other in zip(size, amounts, strict=True)]
    text = init(csv(tmp_path / "sales.csv", rows), "amount").read_text()
    assert f"loss: {{type: {loss}, input: answer, target: amount}}" in text
    assert "A few values are far from the others" in text


def test_a_decimal_comma_is_read(tmp_path: Path) -> None:
    rows: list[Row] = [{"a": f"{at},5", "b": f"{at % 7}", "y": f"{2 * at % 31},25"} for at in range(60)]
    text = init(csv(tmp_path / "x.csv", rows, ";"), "y").read_text()
    assert 'delimiter: ";", decimal: ","' in text
    assert "columns: [a, b]" in text


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_other_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"flowers.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in flowers(60)))
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.Table.from_pylist(flowers(60)), path)
    text = init(path, "kind").read_text()
    assert f"source: {{type: {kind}, path: flowers.{kind}}}" in text
    assert "columns: [length, width]" in text


def test_a_table_of_an_sqlite_file_is_read(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "flowers.sqlite"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE flowers (length, width, kind)")
        file.executemany("INSERT INTO flowers VALUES (?, ?, ?)", [tuple(row.values()) for row in flowers(60)])
        file.commit()
    recipe = init(path, "kind")
    assert "source: {type: sqlite, path: flowers.sqlite, table: flowers}" in recipe.read_text()
    assert problems(recipe) == []
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE other (x)")
    assert main(["init", "--from", str(path), "--target", "kind", "-o", str(tmp_path / "b.yaml")]) == 1
    assert "more than one table, or none" in capsys.readouterr().err
    text = init(path, "kind", "--table", "flowers").read_text()
    assert "table: flowers" in text
    assert "--target kind --table flowers" in " ".join(text.replace("#", " ").split())  # wrapped where paths are long
    assert main(["init", "--from", str(path), "--target", "kind", "--table", "none"]) == 1
    assert "has no table `none`\nhelp: it has `flowers`, `other`" in capsys.readouterr().err
    assert main(["init", "--table", "flowers"]) == 2


def test_a_rare_class_is_weighed_and_its_sets_are_named(tmp_path: Path) -> None:
    rows = [
        *flowers(90),
        {"length": 9.0, "width": 9.0, "kind": "cactus"},
        {"length": 8.9, "width": 9.1, "kind": "cactus"},
    ]
    recipe = init(csv(tmp_path / "rare.csv", rows), "kind")
    text = recipe.read_text()
    assert "class_weights" not in re.sub(r"#.*", "", text)
    assert "`class_weights: balanced` in the loss finds more of the rare classes" in " ".join(
        text.replace("#", "").split()
    )
    if "ignore[D033]" in text:
        assert "`cactus` has 2 rows: too few" in text


@pytest.mark.parametrize(
    ("kinds", "wanted"),
    [
        (["a", "b"], "validation/loss, mode: min"),
        (["a", "b", "c"], "validation/loss, mode: min"),
        (["a"] * 9 + ["b"], "validation/auroc, mode: max"),
        (["a"] * 9 + ["b", "c"], "validation/f1, mode: max"),
        ([1.5, 2.25, 7.125], "validation/loss, mode: min"),
    ],
)
def test_best_weights_are_those_of_the_loss_unless_a_class_is_rare(
    kinds: list[object], wanted: str, tmp_path: Path
) -> None:
    rows: list[Row] = [
        {"x": float(at % 13) / 3, "z": (at * 7) % 11, "kind": kinds[at % len(kinds)]} for at in range(220)
    ]
    recipe = init(csv(tmp_path / "x.csv", rows), "kind")
    text = recipe.read_text()
    assert f"best: {{metric: {wanted}}}" in text
    assert f"early_stop: {{metric: {wanted}," in text
    assert problems(recipe) == []


def test_a_file_of_another_encoding_is_read(tmp_path: Path) -> None:
    rows = "".join(f"{row % 7},{('Köln', 'Zürich')[row % 2]},{('ja', 'möglich')[row % 2]}\n" for row in range(60))
    (tmp_path / "excel.csv").write_bytes(f"größe,stadt,antwort\n{rows}".encode("cp1252"))
    recipe = init(tmp_path / "excel.csv", "antwort")
    assert "encoding: cp1252" in recipe.read_text("utf-8")
    assert problems(recipe) == []


@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_the_task_can_be_said(task: str, tmp_path: Path) -> None:
    rows: list[Row] = [{"a": float(at % 13) / 3, "stars": at % 5} for at in range(100)]
    text = init(csv(tmp_path / "x.csv", rows), "stars", "--task", task).read_text()
    assert ("cross_entropy" in text) == (task == "classes")


def test_many_columns_are_all_but_a_few(tmp_path: Path) -> None:
    rows: list[Row] = [{f"p{c}": (at * (c + 3)) % 97 for c in range(30)} | {"y": at % 2} for at in range(80)]
    text = init(csv(tmp_path / "x.csv", rows), "y").read_text()
    assert 'columns: "*"' in text
    assert "exclude: [y]" in text


ONE: list[Row] = [{"a": at, "b": (at * 7) % 5, "y": 1} for at in range(40)]
GAP: list[Row] = [{"a": (at * 7) % 5, "y": None if at == 4 else at % 2} for at in range(40)]


@pytest.mark.parametrize(
    ("rows", "target", "said", "code"),
    [
        (flowers(), "knid", "has no column `knid`\nhelp: did you mean `kind`?", 2),
        (ONE, "y", "`y` is `1` in every row", 1),
        (GAP, "y", "`y` is missing in 1 row (the first: row 5 of", 1),
        ([{"id": at, "y": at % 2} for at in range(40)], "y", "no column is left to predict `y` from (`id`: an id", 1),
        (flowers(6), "kind", "has 6 rows: too few", 1),
        (people(60), "remark", "`remark` has 60 different values in 60 rows: too many classes", 1),
        (people(60), "joined", "`joined` contains dates", 2),
        (flowers(30), "", "give the column to predict", 2),
    ],
)
def test_what_cannot_be_learned_has_one_message(
    rows: list[Row], target: str, said: str, code: int, tmp_path: Path, capsys: Captured
) -> None:
    data = csv(tmp_path / "x.csv", rows)
    words = ["--target", target] if target else []
    assert main(["init", "--from", str(data), *words, "-o", str(tmp_path / "x.yaml")]) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize(
    ("name", "text", "said", "code"),
    [
        ("x.csv", "", "x.csv` is empty", 1),
        ("x.csv", "a,y\n", "has columns but no rows", 1),
        ("x.csv", "1,2\n3,4\n", "has numbers instead of column names", 1),
        ("x.xlsx", "a", "is a spreadsheet, which is not read", 2),
        ("missing.csv", None, "there is no file", 2),
    ],
)
def test_files_that_hold_no_table_have_one_message(
    name: str, text: str | None, said: str, code: int, tmp_path: Path, capsys: Captured
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert main(["init", "--from", str(path), "--target", "y", "-o", str(tmp_path / "x.yaml")]) == code
    found = capsys.readouterr().err
    assert said in found.replace("x.csv is", "x.csv` is"), found
    assert "Traceback" not in found


def test_a_wrong_column_is_said_before_the_recipe_that_is_there(tmp_path: Path, capsys: Captured) -> None:
    data = csv(tmp_path / "x.csv", flowers())
    (tmp_path / "x.yaml").write_text("name: mine\n")
    words = ["init", "--from", str(data), "-o", str(tmp_path / "x.yaml"), "--target"]
    assert main([*words, "spieces"]) == 2
    assert "has no column `spieces`" in capsys.readouterr().err
    assert main([*words, next(reversed(flowers()[0]))]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "x.yaml").read_text() == "name: mine\n"


def test_init_without_a_table_refuses_its_words(tmp_path: Path, capsys: Captured) -> None:
    assert main(["init", str(tmp_path / "x.yaml"), "--target", "y"]) == 2
    assert "--from DATA" in capsys.readouterr().err


def test_a_column_of_files_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    numbers = np.random.default_rng(0).normal(size=60)
    columns = {"photo": [b"1", b"2", b"3"] * 20, "size": numbers, "kind": (numbers > 0).astype(int)}
    parquet.write_table(pa.table(columns), tmp_path / "p.parquet")
    assert main(["init", str(tmp_path / "r.yaml"), "--from", str(tmp_path / "p.parquet"), "--target", "kind"]) == 0
    assert "photo" not in re.sub(r"#.*", "", (tmp_path / "r.yaml").read_text())


@pytest.mark.parametrize(
    ("make", "keys"),
    [
        (lambda at: f"2021-{1 + at % 12:02d}-01", ["columns: [when]", "parts: [time, month]"]),
        (lambda at: f"{2000 + at % 20}-01-01", ["parts: [time]"]),
        (lambda at: f"{1 + at % 28:02d}.{1 + at % 12:02d}.2021", ['format: "%d.%m.%Y"', "[time, yearday, weekday]"]),
        (lambda at: f"05/{13 + at % 15}/21 {at % 24:02d}:00", ['format: "%m/%d/%y %H:%M"', "[time, weekday, hour]"]),
        (lambda at: f"{1 + at % 12:02d}/{1 + at % 12:02d}/2021", ['"%d/%m/%Y"   # %m/%d/%Y fits as well']),
        (lambda at: "" if at == 5 else f"2021-03-{1 + at % 30:02d}", ["missing: zero   # 1 value missing"]),
    ],
)
def test_dates_have_the_parts_that_differ(make: Callable[[int], str], keys: list[str], tmp_path: Path) -> None:
    rows: list[Row] = [{"when": make(at), "size": at * 7919 % 997 / 10, "y": at % 2} for at in range(200)]
    recipe = init(csv(tmp_path / "x.csv", rows), "y")
    for key in keys:
        assert key in recipe.read_text()
    assert problems(recipe) == []


def test_counts_of_seconds_are_dates_by_their_name(tmp_path: Path) -> None:
    rows: list[Row] = [{"timestamp": 1.6e9 + 1e5 * at, "x": 1.6e9 + 1e5 * at, "y": at % 2} for at in range(200)]
    text = init(csv(tmp_path / "x.csv", rows), "y").read_text()
    assert "columns: [timestamp]\n      format: seconds   # seconds since 1970\n" in text
    assert "columns: [x]\n      normalize" in text


def test_dates_in_no_known_format_are_left_out(tmp_path: Path) -> None:
    rows: list[Row] = [{"when": f"1{at % 9}-1-{at % 9}", "x": at % 7, "y": at % 2} for at in range(200)]
    assert "# - when: dates in several formats" in init(csv(tmp_path / "x.csv", rows), "y").read_text()


def test_a_column_that_decides_the_target_alone_is_shown(tmp_path: Path, capsys: Captured) -> None:
    draw = random.Random(2)
    rows: list[Row] = []
    for _ in range(300):
        amount = draw.choice([0, 0, draw.uniform(1, 9)])
        rows.append({"amount": round(amount, 3), "x": draw.gauss(0, 1) + (amount > 0), "late": amount > 0})
    text = init(csv(tmp_path / "x.csv", rows), "late").read_text()
    assert "# - amount: alone it gives `late` in 100.0% of the rows" in text
    assert "# - x:" not in text
    assert "to check: amount: alone it gives" in capsys.readouterr().out
    prices: list[Row] = [{"net": at % 97, "gross": round(1.19 * (at % 97) + draw.random(), 2)} for at in range(300)]
    assert (
        "# - net: alone it explains 99.9% of the variance"
        in init(csv(tmp_path / "y.csv", prices), "gross", "--task", "numbers").read_text()
    )


def test_an_id_of_several_rows_is_found_by_its_values(tmp_path: Path) -> None:
    rows: list[Row] = [{"person": 1 + at // 4, "x": at % 7, "y": at % 2} for at in range(200)]
    text = init(csv(tmp_path / "x.csv", rows), "y").read_text()
    assert (
        "# - person: it counts groups of rows; if new rows will have other ones, split by it: {type: grouped," in text
    )
    years: list[Row] = [{"year": 1990 + at // 4, "x": at % 7, "y": at % 2} for at in range(200)]
    assert "columns: [year, x]" in init(csv(tmp_path / "y.csv", years), "y").read_text()


def test_an_empty_class_is_named(tmp_path: Path) -> None:
    rows: list[Row] = [{"x": at % 7, "y": (0, 1, 3)[at % 3]} for at in range(200)]
    assert (
        "# No row has class 2, and the model cannot answer it." in init(csv(tmp_path / "x.csv", rows), "y").read_text()
    )


def test_baselines_are_shown_for_the_validation_rows(tmp_path: Path, capsys: Captured) -> None:
    pytest.importorskip("sklearn")
    init(csv(tmp_path / "flowers.csv", flowers()), "kind", "--baseline")
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"validation accuracy: majority 0.333, linear 1.000, boosting [01].\d{3}", last)
    assert main(["init", "--baseline"]) == 2
