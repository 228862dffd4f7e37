"""`describe`: what is wrong with the data, all of it, each at its place."""

# ruff: noqa: E501 (the mistakes are a table, one to a line)

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Severity
from declarative_train.data.source import record_files
from declarative_train.data.spec import DataSpec, FileRecord

Look = Callable[..., tuple[DataSpec | None, list[Diagnostic]]]
DIGITS = Path(__file__).parents[2] / "recipes" / "data" / "digits.csv"
PEOPLE = Path(__file__).parent / "files" / "people.csv"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    for path in (DIGITS, PEOPLE):
        shutil.copy(path, tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    return tmp_path


PIXELS: dict[str, Any] = {"columns": "p*", "scale": 0.0625}
DIGIT: dict[str, Any] = {"type": "category", "column": "label", "num_classes": 10}
BASE: dict[str, Any] = {
    "source": {"type": "csv", "path": "data/digits.csv"},
    "fields": {"pixels": PIXELS, "digit": DIGIT},
    "split": {"validation": 0.2},
}
PEOPLE_SOURCE = {"type": "csv", "path": "data/people.csv"}


def said(found: tuple[DataSpec | None, list[Diagnostic]]) -> list[tuple[str, str]]:
    return [(item.code, item.span.path) for item in found[1]]


def test_digits_are_as_they_should_be(look: Look) -> None:
    spec, diagnostics = look(**BASE)
    assert not diagnostics
    assert spec is not None
    assert {each.name: (each.tensor.shape, each.tensor.dtype, each.tensor.num_values) for each in spec.fields} == {
        "pixels": ((64,), "float32", None),
        "digit": ((), "int64", 10),
    }
    assert [(each.name, each.num_samples) for each in spec.sets] == [("training", 1438), ("validation", 359)]
    (file,) = spec.files
    assert file.size_bytes == DIGITS.stat().st_size


def test_a_file_that_goes_away_meanwhile_is_said(look: Look, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(paths: Iterable[str]) -> list[FileRecord]:
        (folder / "data" / "digits.csv").unlink()
        return record_files(paths)

    monkeypatch.setattr("declarative_train.data.build_spec.record_files", away)
    spec, diagnostics = look(**BASE)
    assert spec is None
    (found,) = diagnostics
    assert (found.span.path, found.is_error) == ("data.source.path", True)
    assert "data/digits.csv: No such file or directory" in found.message


def test_describe_needs_no_torch(folder: Path) -> None:
    import subprocess
    import sys

    code = "import sys, declarative_train.data.build_spec; assert not {'torch', 'pyarrow', 'fsspec'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("changes", "code", "at", "words", "help"),
    [
        ({"source": {"type": "csv", "path": "data/digit.csv"}}, "D001", "data.source.path", "no file data/digit.csv", "did you mean `digits.csv`?"),
        ({"source": {"type": "csv", "path": "data/*.tsv"}}, "D002", "data.source.path", "no file matches data/*.tsv", "relative"),
        ({"source": {"type": "parquet", "path": "data/digits.csv"}}, "D003", "data.source.path", "data/digits.csv is not a Parquet file, it is text", "`csv`"),
        ({"source": {"type": "csv", "path": "data"}}, "D003", "data.source.path", "data is a folder", "data/*"),
        ({"source": {"type": "csv", "path": "data/*.csv"}}, "D004", "data.source.path", "data/people.csv lacks", "same columns"),
        ({"source": {"type": "csv", "path": "nowhere://a"}}, "D020", "data.source.path", "nowhere", None),
        ({"fields": {"y": {"column": "lable"}}}, "D005", "data.fields.y.column", "no column `lable`", "did you mean `label`?"),
        ({"fields": {"y": {"columns": ["label", "q1"]}}}, "D005", "data.fields.y.columns.1", "no column `q1`", None),
        ({"fields": {"y": {"columns": "q*"}}}, "D005", "data.fields.y.columns", "matches `q*`", None),
        ({"split": {"v": {"type": "where", "column": "mont", "equals": 3}}}, "D005", "data.split.v.column", "`mont`", None),
        ({"split": {"v": {"type": "last", "fraction": 0.1, "sort": "time"}}}, "D005", "data.split.v.sort", "`time`", None),
        ({"window": {"length": 2, "by": "meter"}, "split": {}}, "D005", "data.window.by", "`meter`", None),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"column": "city"}}}, "D006", "data.fields.x.column", "`city` holds text", "category"),
        ({"fields": {"x": {"columns": "p*", "shape": [8, 9]}}}, "D006", "data.fields.x.shape", "64 values", None),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"column": "age"}}, "split": {}}, "D007", "data.fields.x.column", "`age` misses 2 values, first in row 2 of data/people.csv", "missing: mean"),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"columns": ["height", "age"]}}, "split": {}}, "D007", "data.fields.x.columns.1", "row 2", None),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"type": "category", "column": "age", "num_classes": 99}}, "split": {}}, "D007", "data.fields.x.column", "row 2", "unknown: 0"),
        ({"fields": {"y": {**DIGIT, "num_classes": 9}}, "split": {}}, "D008", "data.fields.y.num_classes", "`label` is 9, and 9 classes go from 0 to 8, in row 10 of", "num_classes to 10"),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"type": "category", "column": "city"}}, "split": {"v": {"type": "last", "fraction": 0.2}}}, "D008", "data.fields.x.column", "`stanford`", "unknown"),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"column": "height", "dtype": "int64"}}, "split": {}}, "D009", "data.fields.x.dtype", "1.65", "float32"),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"type": "category", "column": "height"}}, "split": {}}, "D009", "data.fields.x.column", "1.65", None),
        ({"split": {"v": {"type": "where", "column": "label", "equals": 11}}}, "D010", "data.split.v", "`v` is empty", None),
        ({"split": {"a": {"type": "where", "column": "label", "at_most": 9}}}, "D010", "data.split", "`training` is empty: the other sets use all", "smaller"),
        ({"window": {"length": 2000}, "split": {}}, "D010", "data.window.length", "its 1,797 rows do not include 2000 consecutive ones", "shorter"),
        ({"window": {"length": 16}, "split": {"v": 0.2}}, "D011", "data.split.v.type", "16 consecutive rows", "last"),
        ({"fields": {"x": {**PIXELS, "rows": ":4"}}}, "D012", "data.fields.x.rows", "has no `window`", "window"),
        ({"fields": {"x": {**PIXELS, "rows": "8:"}}, "window": {"length": 8}, "split": {}}, "D013", "data.fields.x.rows", "`rows: 8:` selects no row of a window of 8", "0 to 7"),
        ({"fields": {"x": {**PIXELS, "rows": 8}}, "window": {"length": 8}, "split": {}}, "D013", "data.fields.x.rows", "`rows: 8`", None),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"type": "category", "column": "city", "num_classes": 2}}, "split": {}}, "D014", "data.fields.x", "5 different values", None),
        ({"split": {"v": {"type": "where", "column": "label", "equals": "nine"}}}, "D016", "data.split.v", "`label` contains numbers", None),
        ({"source": PEOPLE_SOURCE, "fields": {"x": {"column": "height"}}, "window": {"length": 2, "sort": "age"}, "split": {}}, "D018", "data.window.sort", "has missing values", None),
    ],
)  # fmt: skip
def test_each_mistake_is_said_at_its_place(
    look: Look, changes: dict[str, Any], code: str, at: str, words: str, help: str | None
) -> None:
    spec, diagnostics = look(**{**BASE, **changes})
    assert spec is None
    (found,) = diagnostics
    assert (found.code, found.span.path, found.severity) == (code, at, Severity.ERROR)
    assert words in found.message
    if help is not None:
        assert found.help is not None
        assert help in found.help


def test_everything_is_said_at_once(look: Look) -> None:
    found = look(
        source=PEOPLE_SOURCE,
        fields={
            "a": {"column": "ages"},
            "b": {"column": "city"},
            "c": {"column": "age"},
            "d": {"column": "height", "dtype": "int64"},
            "e": {"type": "category", "column": "city", "num_classes": 2},
            "f": {"column": "height", "normalize": "standard"},
        },
        split={"v": {"type": "last", "fraction": 0.3}},
    )
    assert sorted(said(found)) == [
        ("D005", "data.fields.a.column"),
        ("D006", "data.fields.b.column"),
        ("D007", "data.fields.c.column"),
        ("D009", "data.fields.d.dtype"),
        ("D014", "data.fields.e"),
    ]


@pytest.mark.packs
def test_a_text_without_window_is_a_warning(look: Look) -> None:
    spec, (found,) = look(
        source={"type": "text", "path": "data/people.csv"}, fields={"t": {"column": "tokens"}}, split={}
    )
    assert spec is not None
    assert (found.code, found.severity) == ("D017", Severity.WARNING)


def test_a_remote_source_is_not_looked_at_offline(look: Look) -> None:
    remote = {"type": "csv", "path": ["data/digits.csv", "s3://bucket/*.csv"]}
    spec, (found,) = look(**{**BASE, "source": remote}, offline=True)
    assert spec is None
    assert (found.code, found.severity, found.span.path) == ("D015", Severity.UNVERIFIED, "data.source.path")
    assert "s3://bucket/*.csv" in found.message
    spec, (found,) = look(**{**BASE, "split": {"far": {"source": remote}}}, offline=True)
    assert spec is None
    assert (found.code, found.span.path) == ("D015", "data.split.far.source.path")
    assert look(**BASE, offline=True)[0] is not None


def test_a_set_of_its_own_source_is_checked_too(look: Look, folder: Path) -> None:
    (folder / "data" / "new.csv").write_text("x,label\n1,red\n")
    for name in ("old", "later"):
        (folder / "data" / f"{name}.csv").write_text("x,label\n1,0\n2,\n3,2\n")
    old = {"type": "csv", "path": "data/old.csv"}
    fields = {"x": {"column": "x"}, "label": {"column": "label", "missing": "zero"}}

    def with_set(path: str, **more: Any) -> list[tuple[str, str]]:
        return said(
            look(source=old, fields={**fields, **more}, split={"new": {"source": {"type": "csv", "path": path}}})
        )

    assert with_set("data/new.csv") == [("D006", "data.split.new.source")]
    assert with_set("data/nwe.csv") == [("D001", "data.split.new.source.path")]
    assert with_set("data/people.csv") == [("D005", "data.split.new.source")] * 2
    assert with_set("data/later.csv", label={"column": "label"}) == [("D007", "data.fields.label.column")]
    assert with_set("data/later.csv") == []
    assert with_set("data/old.csv") == [("D032", "data.split.new.source.path")]
    (folder / "data" / "wide.csv").write_text("x,x2,label\n1,2,0\n")
    assert with_set("data/wide.csv", x={"columns": "x*"}) == [("D006", "data.split.new.source")]


def test_why_a_column_of_the_file_is_none(look: Look, folder: Path) -> None:
    np.savez(folder / "data" / "a.npz", x=np.zeros((6, 2)), y=np.zeros(6), mean=np.zeros(4))
    _, (found,) = look(source={"type": "npy", "path": "data/a.npz"}, fields={"m": {"column": "mean"}})
    assert found.code == "D005"
    assert found.message == "`mean` cannot be read: it has 4 rows where most have 6"


def test_a_torn_row_is_named(look: Look, folder: Path) -> None:
    lines = DIGITS.read_text().splitlines()
    lines[100] = lines[100].rpartition(",")[0]
    (folder / "data" / "digits.csv").write_text("\n".join(lines))
    _, (found,) = look(**BASE)
    assert found.code == "D003"
    assert found.message == "line 101 of data/digits.csv has 64 values where the others have 65"


@pytest.mark.parametrize(
    ("content", "field", "code", "words"),
    [
        ("x\n1.5\ninf\n", {"column": "x"}, "D008", "`x` is inf, in row 2 of data/odd.csv"),
        ("x\n1.5\n-inf\n", {"column": "x", "missing": "mean"}, "D014", "infinite values in the training rows, first in row 2 of"),
        ("x\n1\n1e200\n", {"column": "x", "normalize": "standard"}, "D014", "`x` goes from 1 to 1e+200"),
        ("x\n1\n1e200\n", {"column": "x", "normalize": "standard"}, "D014", "too far to be normalised, first in row 2 of data/odd.csv"),
        ("x\n-1e308\n1e308\n", {"column": "x", "normalize": "minmax"}, "D014", "too far to be normalised"),
        ("x,y\n,1\n,2\n", {"column": "x"}, "D007", "`x` has no value in 2 rows"),
        ("x,y\n,1\n,2\n", {"column": "x", "missing": "mean"}, "D014", "`x` has no value in the training rows"),
    ],
)  # fmt: skip
def test_values_that_no_tensor_should_hold(
    look: Look, content: str, field: dict[str, Any], code: str, words: str
) -> None:
    Path("data/odd.csv").write_text(content)
    _, diagnostics = look(source={"type": "csv", "path": "data/odd.csv"}, fields={"x": field})
    assert [item.code for item in diagnostics] == [code]
    assert words in diagnostics[0].message
    assert diagnostics[0].help or code != "D014"


def test_the_row_of_an_infinite_value_is_that_of_the_file_though_other_rows_train(look: Look) -> None:
    rows = (f"{'inf' if row in (2, 7) else row},{row}\n" for row in range(10))
    Path("data/odd.csv").write_text("x,w\n" + "".join(rows))
    source = {"type": "csv", "path": "data/odd.csv"}
    held_out = {"test": {"type": "where", "column": "w", "at_most": 4}}
    _, diagnostics = look(source=source, fields={"x": {"columns": ["w", "x"], "missing": "mean"}}, split=held_out)
    (said,) = [item for item in diagnostics if item.code == "D014"]
    assert said.message.endswith("`x` holds infinite values in the training rows, first in row 8 of data/odd.csv")
    assert said.help == "write a number there, or nothing and `missing: mean`"


def test_of_a_glob_that_takes_in_text_the_hint_leaves_it_out(look: Look) -> None:
    _, (said,) = look(source=PEOPLE_SOURCE, fields={"x": {"columns": "*", "exclude": ["age"]}}, split={})
    assert said.code == "D006"
    assert (said.help or "").startswith("`exclude: [age, name, city]` leaves them out")
    assert "`type: category`" in (said.help or "")
    _, (named,) = look(source=PEOPLE_SOURCE, fields={"x": {"columns": ["height", "city"]}}, split={})
    assert "exclude" not in (named.help or "")


def test_integers_that_no_number_type_holds_are_said_whatever_the_other_fields_are(look: Look) -> None:
    Path("data/ids.csv").write_text("x,id\n1,9007199254740993\n2,\n3,9007199254740995\n")
    _, diagnostics = look(
        source={"type": "csv", "path": "data/ids.csv"},
        fields={
            "plain": {"column": "x"},
            "x": {"column": "x", "normalize": "standard"},
            "id": {"type": "category", "column": "id"},
        },
    )
    assert diagnostics
    assert {item.code for item in diagnostics} == {"D003"}
    assert len(diagnostics) == 1
    assert "`id` in data/ids.csv has missing values and integers beyond 2^53" in diagnostics[0].message
