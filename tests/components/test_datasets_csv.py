"""CSV and JSON lines: types, missing values, several files, and the words for files that cannot be read."""

from __future__ import annotations

import gzip
import io
import signal
import zipfile
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from declarative_train.components.datasets import arrow_cache
from declarative_train.components.datasets.csv import CsvDataset
from declarative_train.components.datasets.jsonl import JsonlDataset
from declarative_train.files.open_files import expand, format_path, is_remote, open_file, read_bytes, size_bytes
from declarative_train.files.paths import SourceError


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_types_are_those_of_all_values_and_missing_ones_are_nan_or_none(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv",
        "n,x,flag,word,big,day\n"
        '1,0.5,true,"a, ""b""\nc",9007199254740993,2024-01-31\n'
        "2,,false,,9007199254740995,2024-02-01\n"
        "3,nan,true,NA,-1,\n",
    )
    table = CsvDataset(path=path).open()
    assert list(table.columns) == ["n", "x", "flag", "word", "big", "day"]
    assert {name: column.dtype for name, column in table.columns.items()} == {
        "n": "int64",
        "x": "float64",
        "flag": "bool",
        "word": "object",
        "big": "int64",
        "day": "datetime64[ns]",
    }
    read = table.read(list(table.columns), slice(0, 3))
    assert read["n"].tolist() == [1, 2, 3]
    assert read["x"][0] == 0.5
    assert np.isnan(read["x"][1:]).all()
    assert read["flag"].tolist() == [True, False, True]
    assert read["word"].tolist() == ['a, "b"\nc', None, None]
    assert read["big"].tolist() == [9007199254740993, 9007199254740995, -1]
    assert read["day"][0] == np.datetime64("2024-01-31")
    assert np.isnat(read["day"][2])


def test_rows_are_read_by_number_in_any_order_with_repeats(tmp_path: Path) -> None:
    table = CsvDataset(path=write(tmp_path / "a.csv", "a\n" + "\n".join(map(str, range(10))))).open()
    assert table.read(["a"], np.asarray([7, 0, 7]))["a"].tolist() == [7, 0, 7]
    assert table.read(["a"], slice(2, 4))["a"].tolist() == [2, 3]


def test_a_column_of_integers_and_bools_with_missing_ones_is_read_as_floats(tmp_path: Path) -> None:
    table = CsvDataset(path=write(tmp_path / "a.csv", "n,b\n1,true\n,\n3,false\n")).open()
    read = table.read(["n", "b"], slice(0, 3))
    np.testing.assert_array_equal(read["n"], [1.0, np.nan, 3.0])
    np.testing.assert_array_equal(read["b"], [1.0, np.nan, 0.0])


def test_a_number_far_down_widens_the_column(tmp_path: Path) -> None:
    lines = ["a,b"] + ["1,1"] * 300_000 + ["2.5,x"]
    table = CsvDataset(path=write(tmp_path / "a.csv", "\n".join(lines))).open()
    assert table.columns["a"].dtype == "float64"
    assert table.columns["b"].dtype == "object"


def test_files_of_a_glob_are_one_table_by_name_and_rows_know_their_file(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", "x,y\n3,0.5\n")
    write(tmp_path / "a.csv", "y,x\n7,1\n8,2\n")
    table = CsvDataset(path=str(tmp_path / "*.csv")).open()
    assert table.read(["x", "y"], slice(0, 3))["x"].tolist() == [1, 2, 3]
    assert table.read(["y"], slice(0, 3))["y"].tolist() == [7.0, 8.0, 0.5]
    assert table.files == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    assert table.place(1).startswith("row 2 of")
    assert table.place(2).startswith("row 1 of")
    assert table.place(2).endswith("b.csv")


def test_a_column_that_is_text_in_one_file_is_text_in_all(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x\n1\n")
    write(tmp_path / "b.csv", "x\nred\n")
    table = CsvDataset(path=str(tmp_path / "*.csv")).open()
    assert table.read(["x"], slice(0, 2))["x"].tolist() == ["1", "red"]


def test_delimiter_and_names_of_files_without_header(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "1;2\n3;4\n")
    table = CsvDataset(path=path, delimiter=";", columns=("a", "b")).open()
    assert table.read(["b"], slice(0, 2))["b"].tolist() == [2, 4]


def test_a_decimal_comma_and_words_for_missing_values(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'x;y\n1,5;?\n"?";2\n-3,25;red\n')
    table = CsvDataset(path=path, delimiter=";", decimal=",", missing_values=("?",)).open()
    read = table.read(["x", "y"], slice(0, 3))
    np.testing.assert_array_equal(read["x"], [1.5, np.nan, -3.25])
    assert read["y"].tolist() == [None, "2", "red"]
    assert CsvDataset(path=path, delimiter=";").open().columns["x"].dtype == "object"


def test_a_packed_file_and_a_url_in_memory(tmp_path: Path) -> None:
    import fsspec

    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"a\n1\n2\n"))
    assert CsvDataset(path=str(packed)).open().num_rows == 2
    with fsspec.open("memory://csv/one.csv", "wb") as file:
        file.write(b"a\n1\n")
    with fsspec.open("memory://csv/two.csv", "wb") as file:
        file.write(b"a\n2\n")
    table = CsvDataset(path="memory://csv/*.csv").open()
    assert table.read(["a"], slice(0, 2))["a"].tolist() == [1, 2]
    with pytest.raises(SourceError) as found:
        CsvDataset(path="memory://csv/thre.csv").open()
    assert found.value.problem == "not_found"
    assert found.value.known == ("one.csv", "two.csv")


@pytest.mark.parametrize(
    ("text", "problem", "words"),
    [
        ("a,b\n1,2\n3\n", "unreadable", "line 3 of"),
        ("a,b\n1,2\n3\n", "unreadable", "has 1 value where the others have 2"),
        ('a,b\n1,"x\ny"\n3\n', "unreadable", "line 4 of"),
        ("a,b\n\n1,2\n\n\n3,4,5\n", "unreadable", "line 6 of"),
        ("", "unreadable", "is empty"),
        ("a,a\n1,2\n", "different_columns", "two columns called `a`"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_words(tmp_path: Path, text: str, problem: str, words: str) -> None:
    with pytest.raises(SourceError) as found:
        CsvDataset(path=write(tmp_path / "a.csv", text)).open()
    assert found.value.problem == problem
    assert words in str(found.value)


def test_a_row_may_be_longer_than_what_is_parsed_at_a_time(tmp_path: Path) -> None:
    long = "z" * (3 << 20)
    table = CsvDataset(path=write(tmp_path / "a.csv", f"a,b\n1,q\n2,{long}\n3,q\n")).open()
    read = table.read(["a", "b"], slice(0, 3))
    assert read["a"].tolist() == [1, 2, 3]
    assert read["b"].tolist() == ["q", long, "q"]


def test_a_signal_that_a_run_handles_does_not_fail_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Signalling(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            block = super().read(size)
            if block and not heard:
                signal.raise_signal(signal.SIGTERM)
            return block

    path = write(tmp_path / "long.csv", "x\n" + "1\n" * 4_000_000)
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    monkeypatch.setattr(arrow_cache, "open_file", Signalling)
    try:
        table = CsvDataset(path=path).open()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert table.num_rows == 4_000_000
    assert heard == [signal.SIGTERM]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-be"])
def test_utf16_is_told(tmp_path: Path, coding: str) -> None:
    (tmp_path / "a.csv").write_text("\ufeffa,b\n1,2\n".removeprefix("\ufeff" * (coding == "utf-16")), coding)
    with pytest.raises(SourceError, match="it is text in UTF-16") as found:
        CsvDataset(path=str(tmp_path / "a.csv")).open()
    assert "UTF-8" in str(found.value.help)


def test_another_delimiter_is_proposed(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as found:
        CsvDataset(path=write(tmp_path / "a.csv", "a;b\n1,5;2\n3;4\n")).open()
    assert found.value.help is not None
    assert "';'" in found.value.help


def test_text_that_is_not_utf8_leaves_its_column_out(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"a,b\n1,\xff\xfe\n")
    table = CsvDataset(path=str(path)).open()
    assert list(table.columns) == ["a"]
    assert "UTF-8" in table.left_out["b"]


def test_integers_that_no_float_holds_beside_missing_ones_are_refused(tmp_path: Path) -> None:
    table = CsvDataset(path=write(tmp_path / "a.csv", "a,b\n9007199254740993,1\n,2\n")).open()
    with pytest.raises(SourceError, match=r"2\^53"):
        table.read(["a"], slice(0, 2))


def test_missing_files_folders_and_globs(tmp_path: Path) -> None:
    write(tmp_path / "digits.csv", "a\n1\n")
    for path, problem in (("digit.csv", "not_found"), ("*.tsv", "no_match"), ("", "unreadable")):
        with pytest.raises(SourceError) as found:
            CsvDataset(path=str(tmp_path / path)).open()
        assert found.value.problem == problem
    with pytest.raises(SourceError) as found:
        CsvDataset(path="nowhere://a.csv").open()
    assert found.value.problem == "no_file_system"


def test_files_with_other_columns_are_named(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "x,y\n1,2\n")
    write(tmp_path / "b.csv", "x,z\n1,2\n")
    with pytest.raises(SourceError, match=r"lacks `y` and also has `z`"):
        CsvDataset(path=str(tmp_path / "*.csv")).open()


def test_json_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", '{"a": 1, "b": "x", "v": [1.0, 2.0]}\n{"a": 2, "c": {"d": 1}, "v": [3.0, 4.0]}\n'
    )
    table = JsonlDataset(path=path).open()
    read = table.read(["a", "b", "v"], slice(0, 2))
    assert read["a"].tolist() == [1, 2]
    assert read["b"].tolist() == ["x", None]
    assert read["v"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert "not a number, a text or a date" in table.left_out["c"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ('{"a": 1}\n{"a": "x"}\n', "`a` changes from number to string in row 2"),
        ('{"a": 1}\n{"a" 2}\n', "is not JSON"),
    ],
)
def test_json_lines_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SourceError) as found:
        JsonlDataset(path=write(tmp_path / "a.jsonl", text)).open()
    assert words in str(found.value)


def test_lists_of_different_lengths_are_refused(tmp_path: Path) -> None:
    table = JsonlDataset(path=write(tmp_path / "a.jsonl", '{"v": [1, 2]}\n{"v": [3]}\n')).open()
    with pytest.raises(SourceError, match="lists of different lengths: 2 at first, then 1"):
        table.read(["v"], slice(0, 2))


def test_a_glob_in_an_archive_and_a_file_of_it(tmp_path: Path) -> None:
    """The files that the glob found were looked for outside of the archive."""
    archive = tmp_path / "d.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a/one.csv", "a\n1\n")
        packed.writestr("a/two.csv", "a\n2\n")
        packed.writestr("note.txt", "none")
    for url in (f"zip://a/*.csv::{archive}", f"simplecache::zip://a/*.csv::{archive}"):
        assert CsvDataset(path=url).open().read(["a"], slice(0, 2))["a"].tolist() == [1, 2]
    one = f"zip://a/one.csv::{archive}"
    assert expand([one]) == [one]
    assert (read_bytes(one), size_bytes(one)) == (b"a\n1\n", 4)
    assert not is_remote(one)
    with pytest.raises(SourceError) as found:
        expand([f"zip://a/on.csv::{archive}"])
    assert (found.value.problem, found.value.known) == ("not_found", ("one.csv", "two.csv"))
    with pytest.raises(SourceError, match="no file matches zip://"):
        expand([f"zip://b/*.csv::{archive}"])


@pytest.mark.parametrize(
    ("url", "problem", "words"),
    [
        ("zip://x.csv::{0}/nope.zip", "not_found", "there is no file"),
        ("zip://x.csv::{0}/plain.csv", "unreadable", "not a zip file"),
        ("tar://x.csv::{0}/plain.csv", "unreadable", "cannot open tar://"),
        ("zip://x.csv::{0}", "unreadable", "is a folder"),
        ("ftp://127.0.0.1:9/x.csv", "unreadable", "cannot open ftp://127.0.0.1:9/x.csv: "),
        ("reference://x", "unreadable", "cannot open reference://x: "),
        ("data://x", "not_found", "there is no file data://x"),
        ("nowhere://x", "no_file_system", "cannot open nowhere://x: "),
    ],
)
def test_whatever_a_file_system_raises_is_told_with_its_url(tmp_path: Path, url: str, problem: str, words: str) -> None:
    write(tmp_path / "plain.csv", "a\n1\n")
    with pytest.raises(SourceError) as found:
        expand([url.format(tmp_path)])
    assert found.value.problem == problem
    assert words in str(found.value)


def test_what_the_client_of_a_cloud_raises_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such clients have exceptions of their own, which are no OSError."""
    import fsspec
    from fsspec.implementations.memory import MemoryFileSystem

    class NoCredentialsError(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentialsError("unable to locate credentials")

    with fsspec.open("memory://cloud/a.csv", "wb") as file:
        file.write(b"a\n1\n")
    for method in ("info", "glob", "_open", "size", "cat_file"):
        monkeypatch.setattr(MemoryFileSystem, method, refuse)
    url = "memory://cloud/a.csv"
    for call in (lambda: expand([url]), lambda: expand(["memory://cloud/*"]), lambda: open_file(url),
                 lambda: size_bytes(url), lambda: read_bytes(url)):  # fmt: skip
        with pytest.raises(SourceError, match=r"memory://cloud/\S+: unable to locate credentials"):
            call()


def test_a_column_may_be_called_as_parquet_begins(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("PAR1,PAR2\n1,2\n")
    assert list(CsvDataset(path=str(tmp_path / "a.csv")).open().columns) == ["PAR1", "PAR2"]


def test_blanks_around_names_are_no_part_of_them(tmp_path: Path) -> None:
    """`"f*"` met the first column alone."""
    (tmp_path / "a.csv").write_text("f0, f1 ,label\n1,2,3\n")
    assert list(CsvDataset(path=str(tmp_path / "a.csv")).open().columns) == ["f0", "f1", "label"]


def test_a_header_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe,x\n1,2\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"first line of .*a\.csv is not UTF-8: the column `gr\\xf6\\xdfe`") as found:
        CsvDataset(path=str(tmp_path / "a.csv")).open()
    assert "UTF-8" in (found.value.help or "")


@pytest.mark.parametrize("rows", [3, 70_000])
def test_another_encoding_is_read(rows: int, tmp_path: Path) -> None:
    text = "größe,ort\n" + "".join(f"{row},Köln €\n" for row in range(rows))
    (tmp_path / "a.csv").write_bytes(text.encode("cp1252"))
    table = CsvDataset(path=str(tmp_path / "a.csv"), encoding="cp1252").open()
    assert list(table.columns) == ["größe", "ort"]
    assert table.read(["ort"], slice(rows - 1, rows))["ort"].tolist() == ["Köln €"]
    for wrong, why in (("klingon", "there is no encoding `klingon`"), ("utf-16", "files in utf-16 are not read")):
        with pytest.raises(ValidationError, match=why):
            CsvDataset(path="a.csv", encoding=wrong)


def test_a_value_that_is_not_utf8_is_named_with_its_row(tmp_path: Path) -> None:
    lines = ["word,x", *(f"plain,{row}" for row in range(99)), "größe,99", "plain,100"]
    (tmp_path / "a.csv").write_bytes("\n".join(lines).encode("latin-1"))
    found = CsvDataset(path=str(tmp_path / "a.csv")).open()
    assert list(found.columns) == ["x"]
    assert r"first `gr\xf6\xdfe` in row 100 of " in found.left_out["word"]


def test_json_lines_that_are_nested_too_deep_are_refused(tmp_path: Path) -> None:
    flat = "[" + ",".join("[1]" for _ in range(2_000)) + "]"
    brackets = '"' + "[{" * 2_000 + '"'
    fine = write(tmp_path / "fine.jsonl", f'{{"n": 1, "x": {flat}, "word": {brackets}}}\n{{"n": 2}}\n')
    assert JsonlDataset(path=fine).open().read(["n"], slice(0, 2))["n"].tolist() == [1, 2]
    for deep in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000):
        path = write(tmp_path / "deep.jsonl", f'{{"n": 1}}\n{{"n": {deep}}}\n')
        with pytest.raises(SourceError, match=r"row 2 of .*deep\.jsonl has more than 1,000 nested lists"):
            JsonlDataset(path=path).open()


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_column_without_any_value_is_one_of_missing_numbers(tmp_path: Path, kind: str) -> None:
    if kind == "csv":
        table = CsvDataset(path=write(tmp_path / "a.csv", "n,none\n1,\n2,NA\n")).open()
    else:
        table = JsonlDataset(
            path=write(tmp_path / "a.jsonl", '{"n": 1, "none": null}\n{"n": 2, "none": null}\n')
        ).open()
    assert table.columns["none"].dtype == "float64"
    assert np.isnan(table.read(["none"], slice(0, 2))["none"]).all()


@pytest.mark.parametrize(
    ("path", "seen"),
    [
        ("https://me:s3cret@host/a.csv", "https://***@host/a.csv"),
        ("s3://key:sec/ret@bucket/a.csv", "s3://***@bucket/a.csv"),
        ("https://host/a.csv?X-Amz-Signature=s3cret&part=2", "https://host/a.csv?X-Amz-Signature=***&part=***"),
        ("zip://*.csv::https://s3cret@host/a.zip", "zip://*.csv::https://***@host/a.zip"),
        ("data/a@b?.csv", "data/a@b?.csv"),
    ],
)
def test_paths_are_shown_without_passwords(path: str, seen: str) -> None:
    assert format_path(path) == seen


def test_a_url_that_cannot_be_opened_keeps_its_secret() -> None:
    for url in ("nowhere://me:s3cret@host/x.csv", "https://me:s3cret@127.0.0.1:9/x.csv"):
        with pytest.raises(SourceError) as found:
            CsvDataset(path=url).open()
        assert "s3cret" not in f"{found.value} {found.value.help}"
