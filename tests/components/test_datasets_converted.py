"""csv and jsonl that are larger than is read into memory: converted once, and read in blocks like Parquet."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from declarative_train.components.data import Table
from declarative_train.components.datasets import DATASETS, arrow_cache
from declarative_train.components.datasets.arrow_cache import ConvertedTable
from declarative_train.files import lock
from declarative_train.files.open_files import skip_bad_rows
from declarative_train.files.paths import SourceError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All files are large, and their blocks small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(arrow_cache, "LARGE_BYTES", 10)
    for kind in ("csv", "jsonl"):
        monkeypatch.setattr(f"declarative_train.components.datasets.{kind}.BLOCK_BYTES", 2000)


def opened(kind: str, path: Path | list[Path], **keys: object) -> Table:
    paths = [str(each) for each in path] if isinstance(path, list) else str(path)
    return DATASETS.read({"type": kind, "path": paths, **keys}).open()


def whole(kind: str, path: Path | list[Path], monkeypatch: pytest.MonkeyPatch, **keys: object) -> Table:
    with monkeypatch.context() as patch:
        patch.setattr(arrow_cache, "LARGE_BYTES", 1 << 30)
        return opened(kind, path, **keys)


def same(one: Table, other: Table) -> None:
    assert one.num_rows == other.num_rows
    assert list(one.columns) == list(other.columns)
    for name in one.columns:
        left, right = (table.read([name], slice(0, table.num_rows))[name] for table in (one, other))
        np.testing.assert_array_equal(left, right)
    assert [one.place(row) for row in range(0, one.num_rows, 7)] == [other.place(r) for r in range(0, one.num_rows, 7)]


def lines(count: int) -> list[dict[str, object]]:
    """Types that change in later blocks: missing, then whole numbers; whole numbers, then fractions."""
    return [
        {
            "late": None if n < 200 else n,
            "x": n if n < 300 else n + 0.5,
            "name": f"a, {n}" if n % 2 else None,
            "n": n,
        }
        for n in range(count)
    ]


def write_csv(path: Path, rows: list[dict[str, object]], header: str = "late, x,name,n") -> None:
    text = [header]
    for row in rows:
        cells = [
            "" if value is None else f'"{value}"' if isinstance(value, str) else str(value) for value in row.values()
        ]
        text.append(",".join(cells))
    path.write_text("\n".join(text) + "\n")


def test_a_converted_csv_is_the_one_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_csv(tmp_path / "a.csv", lines(400))
    write_csv(tmp_path / "b.csv", lines(150))
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    table = opened("csv", paths)
    assert isinstance(table, ConvertedTable)
    assert table.blocks is not None
    assert len(table.blocks) > 5
    assert table.files == tuple(map(str, paths))
    same(table, whole("csv", paths, monkeypatch))


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz"])
def test_a_converted_jsonl_is_the_one_in_memory(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a.{ending}"
    text = "\n".join(json.dumps(row) for row in lines(400)).encode()
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    table = opened("jsonl", path)
    assert isinstance(table, ConvertedTable)
    same(table, whole("jsonl", path, monkeypatch))


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_packed_file_counts_by_what_it_holds(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is packed to a thousandth: four times its size is no bound for what it takes in memory."""
    row = b"1,2\n" if kind == "csv" else b'{"x": 1, "y": 2}\n'
    text = b"x,y\n" * (kind == "csv") + row * 20_000
    path = tmp_path / f"a.{kind}.gz"
    path.write_bytes(gzip.compress(text))
    needed = len(text) + 20_001 * 2 * 8 if kind == "csv" else len(text)  # the header is a line, too
    assert path.stat().st_size * 4 < needed // 20
    monkeypatch.setattr(arrow_cache, "LARGE_BYTES", needed - 1)
    table = opened(kind, path)
    assert isinstance(table, ConvertedTable)
    assert table.num_rows == 20_000
    monkeypatch.setattr(arrow_cache, "LARGE_BYTES", needed)
    assert not isinstance(opened(kind, path), ConvertedTable)


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("declarative_train.components.datasets.jsonl._LONGEST_LINE", 10_000)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"x": 1}\n{"x": ' + b" " * 100_000))
    with pytest.raises(SourceError, match=r"line 2 of .*a\.jsonl\.gz is longer than 256 MiB"):
        opened("jsonl", path)


def test_it_is_converted_once_and_again_when_the_file_is_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    write_csv(path, lines(100))
    opened("csv", path)
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "converting it once" in said[0]
    opened("csv", path)
    opened("csv", path)
    assert capsys.readouterr().err == ""
    opened("csv", path, delimiter=";", columns=["all"])
    assert "converting it once" in capsys.readouterr().err
    write_csv(path, lines(101))
    os.utime(path, (1, 1))
    assert opened("csv", path).num_rows == 101
    assert "converting it once" in capsys.readouterr().err


def test_what_is_wrong_has_its_row(tmp_path: Path) -> None:
    text = [json.dumps(row) for row in lines(300)]
    text[250] = "oops"
    (tmp_path / "a.jsonl").write_text("\n".join(text))
    with pytest.raises(SourceError, match=r"row 251 of .*a\.jsonl is not JSON"):
        opened("jsonl", tmp_path / "a.jsonl")
    write_csv(tmp_path / "a.csv", lines(300))
    with (tmp_path / "a.csv").open("a") as file:
        file.write("1,2\n")
    with pytest.raises(SourceError, match=r"line 302 of .*a\.csv has 2 values where the others have 4"):
        opened("csv", tmp_path / "a.csv")
    assert not list((tmp_path / "cache").rglob("*.arrow*"))


def test_rows_of_a_csv_may_be_longer_than_what_is_parsed_at_a_time(tmp_path: Path) -> None:
    long = "z" * (40 << 20)
    (tmp_path / "a.csv").write_text(f"a,b\n1,q\n2,{long}\n3,q\n")
    read = opened("csv", tmp_path / "a.csv").read(["a", "b"], np.arange(3))
    assert read["a"].tolist() == [1, 2, 3]
    assert [len(text) for text in read["b"]] == [1, len(long), 1]


@pytest.mark.parametrize(
    "value",
    ["1.5", "true", "2020-01-03", "2020-01-03T01:02:03.5", "2020-01-03T00:00:00Z", 'a "q" \n,b', "1,5", "\u00fc"],
)
@pytest.mark.parametrize("before", ["", "1", "7", "true", "2020-01-02", "1.5", "a"])
def test_types_are_those_of_all_values(
    before: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f'{before},"some text\nin two, lines {n}"' for n in range(200)]
    rows[150] = '"{}",'.format(value.replace('"', '""'))
    (tmp_path / "a.csv").write_text("x,text\n" + "\n".join(rows) + "\n")
    table = opened("csv", tmp_path / "a.csv")
    assert isinstance(table, ConvertedTable)
    same(table, whole("csv", tmp_path / "a.csv", monkeypatch))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (1, 2.5),
        (2.5, 1),
        ("2020-01-01", "a"),
        ("a", "2020-01-01"),
        (None, "2020-01-01"),
        ([1, 2], [0.5, 2]),
        ([{"role": "user", "content": "2020-01-01"}], [{"role": "user", "content": "a", "name": "b"}]),
        (True, None),
    ],
)
def test_values_of_a_kind_are_one_column(
    before: object, after: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.dumps({"x": before if n < 120 else after, "n": n, "text": "a\nb" * 5}) for n in range(200)]
    rows[30] = ""  # an empty line is no row
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n" * 2500)
    table = opened("jsonl", tmp_path / "a.jsonl")
    assert isinstance(table, ConvertedTable)
    same(table, whole("jsonl", tmp_path / "a.jsonl", monkeypatch))


def test_another_type_in_a_later_block_is_named_or_left_out(tmp_path: Path) -> None:
    rows = [{"x": n, "n": n, "text": "word " * 5} for n in range(200)]
    for n in (120, 121, 150):
        rows[n]["x"] = "many"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(SourceError, match=r"`x` changes from number to string in row 121 of .*a\.jsonl"):
        opened("jsonl", path)
    with skip_bad_rows(True):
        table = opened("jsonl", path)
    assert [place.split(" of ")[0] for place, _ in table.skipped] == ["row 121", "row 122", "row 151"]
    assert table.read(["n"], slice(118, 122))["n"].tolist() == [118, 119, 122, 123]


def test_files_of_other_columns_are_told(tmp_path: Path) -> None:
    for kind, text in (("jsonl", ('{"a": 1, "b": 2}', '{"a": 1, "c": 2}')), ("csv", ("a,b\n1,2", "a,c\n1,2"))):
        paths = [tmp_path / f"{n}.{kind}" for n in range(2)]
        for path, each in zip(paths, text, strict=True):
            path.write_text(each + "\n")
        with pytest.raises(SourceError, match=r"1\.\w+ lacks `b` and also has `c`: its columns are not those of .*0\."):
            opened(kind, paths)


OPENS = """
import sys, time
from declarative_train.components.datasets import DATASETS, arrow_cache, csv
arrow_cache.LARGE_BYTES, csv.BLOCK_BYTES = 10, 2000
if len(sys.argv) > 2:  # stops in the middle
    whole = csv.CsvDataset._batches
    def slow(*args):
        for number, batch in enumerate(whole(*args)):
            yield batch
            if number == 3:
                print("in the middle", flush=True)
                time.sleep(60)
    csv.CsvDataset._batches = slow
table = DATASETS.read({"type": "csv", "path": sys.argv[1]}).open()
print(table.num_rows, int(table.read(["n"], slice(0, table.num_rows))["n"].sum()))
"""


def test_one_process_converts_and_the_others_wait_also_behind_one_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    write_csv(path, lines(400))

    def start(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OPENS, str(path), *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    stopped = start("stops")
    assert stopped.stdout is not None
    assert stopped.stdout.readline() == "in the middle\n"
    assert [each.suffix for each in (tmp_path / "cache").rglob("*") if each.is_file()] == [".part"]
    others = [start() for _ in range(2)]
    assert others[0].stderr is not None
    assert "waiting for another process" in others[0].stderr.readline()
    stopped.kill()
    stopped.communicate(timeout=30)
    said = [other.communicate(timeout=60) for other in others]
    assert [out.split() for out, _ in said] == [["400", str(sum(range(400)))]] * 2
    assert sum("converting it once" in err for _, err in said) == 1
    assert not list((tmp_path / "cache").rglob("*.part"))


def test_one_that_stands_still_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    write_csv(path, lines(400))
    monkeypatch.setattr(lock, "STUCK_S", 0.3)
    with subprocess.Popen([sys.executable, "-c", OPENS, str(path), "stops"], stdout=subprocess.PIPE) as stopped:
        assert stopped.stdout is not None
        stopped.stdout.readline()
        with pytest.raises(SourceError, match=r"another process converts .*a\.csv and has made no progress") as caught:
            opened("csv", path)
        stopped.kill()
    assert "stop it: it holds the lock " in str(caught.value.help)


def test_a_file_that_changes_while_it_is_converted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.csv"
    write_csv(path, lines(400))
    before = arrow_cache._names_of

    def changes(files: list[str]) -> str:
        os.utime(path, (1, 1))
        return before(files)

    monkeypatch.setattr(arrow_cache, "_names_of", changes)
    with pytest.raises(SourceError, match=r"a\.csv changed while it was being read"):
        opened("csv", path)
    assert not [each for each in (tmp_path / "cache").rglob("*") if each.is_file()]


def test_what_is_in_use_is_not_removed_and_what_is_damaged_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DTRAIN_CACHE_GB", "1e-9")
    for name in "ab":
        write_csv(tmp_path / f"{name}.csv", lines(100))
    first = opened("csv", tmp_path / "a.csv")
    assert "set DTRAIN_CACHE_GB higher" in capsys.readouterr().err
    (place,) = (tmp_path / "cache").rglob("*.arrow")
    again = opened("csv", tmp_path / "a.csv")
    assert again.fingerprint == first.fingerprint
    second = opened("csv", tmp_path / "b.csv")
    assert first.read(["n"], slice(0, 3))["n"].tolist() == [0, 1, 2]  # nor does it look changed
    assert place.exists()
    del first, again
    opened("csv", tmp_path / "b.csv", columns=["late", "x", "name", "n"])
    assert not place.exists()
    del second
    for kept in (tmp_path / "cache").rglob("*.arrow"):
        kept.write_bytes(kept.read_bytes()[:-100])
    assert opened("csv", tmp_path / "b.csv").num_rows == 100


def test_it_is_read_where_no_address_is_left_to_map_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was converted again without an end, below `ulimit -v`."""
    import pyarrow as pa

    def full(path: str) -> None:
        raise OSError(errno.ENOMEM, "Memory mapping file failed")

    write_csv(tmp_path / "a.csv", lines(300))
    wanted = whole("csv", tmp_path / "a.csv", monkeypatch)
    monkeypatch.setattr(pa, "memory_map", full)
    same(opened("csv", tmp_path / "a.csv"), wanted)
    assert capsys.readouterr().err.count("converting it once") == 1


def test_what_cannot_be_read_is_converted_no_third_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise SourceError("unreadable", "no")

    monkeypatch.setattr(arrow_cache, "ConvertedTable", fails)
    write_csv(tmp_path / "a.csv", lines(30))
    with pytest.raises(SourceError, match=r"a\.csv was converted to .*, which cannot be read: no"):
        opened("csv", tmp_path / "a.csv")
    assert capsys.readouterr().err.count("converting it once") == 2


def test_without_a_place_to_keep_it_is_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_csv(tmp_path / "a.csv", lines(30))
    assert opened("csv", tmp_path / "a.csv").num_rows == 30


def test_bad_rows_are_left_out_and_the_others_keep_their_numbers(tmp_path: Path) -> None:
    text = [json.dumps(row) for row in lines(300)]
    text[250] = '{"x": '
    (tmp_path / "a.jsonl").write_text("\n".join(text))
    write_csv(tmp_path / "a.csv", lines(300))
    rows = (tmp_path / "a.csv").read_text().splitlines()
    rows[251] = "1,2"
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    for kind in ("jsonl", "csv"):
        with skip_bad_rows(True):
            table = opened(kind, tmp_path / f"a.{kind}")
        assert table.num_rows == 299
        assert [place.split(" of ")[0] for place, _ in table.skipped] == ["row 251"]
        assert table.read(["n"], np.asarray([249, 250, 298]))["n"].tolist() == [249, 251, 299]
        assert table.place(250).startswith("row 252 of ")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_memory_is_bounded(kind: str, tmp_path: Path) -> None:
    """Of a file of 120 MB, as its size rises above a block: what a process takes more, for Arrow and in all."""
    path, numbers = tmp_path / f"large.{kind}", ",".join(["0.123456"] * 11)
    row = f"0.123456,some words that take room,{numbers}\n"
    if kind == "jsonl":
        row = f'{{"x": 0.123456, "text": "some words that take room", "more": [{numbers}]}}\n'
    with path.open("w") as file:
        file.write("x,text," + ",".join(f"x{n}" for n in range(11)) + "\n" if kind == "csv" else "")
        for _ in range(100):
            file.write(row * 9000)
    code = (
        "import re, sys\n"
        "import numpy as np, pyarrow\n"
        "from declarative_train.components.datasets import DATASETS, arrow_cache\n"
        "arrow_cache.LARGE_BYTES = 1 << 20 if sys.argv[1] == 'converted' else 1 << 40\n"
        "def most():\n"
        "    return int(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
        "before = most()\n"
        f"table = DATASETS.read({{'type': {kind!r}, 'path': {str(path)!r}}}).open()\n"
        "grown = most() - before\n"
        "found = table.read(['x'], np.arange(0, table.num_rows, 4001))\n"
        "print(table.num_rows, len(found['x']), pyarrow.default_memory_pool().max_memory() >> 20, grown >> 10)\n"
    )
    found = {}
    for way in ("converted", "in memory"):
        done = subprocess.run(
            [sys.executable, "-c", code, way], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found[way] = tuple(map(int, done.stdout.split()))
        assert found[way][:2] == (900_000, 225)
    assert max(found["converted"][2:]) < 200  # MiB: some dozens of blocks, and what they become
    assert min(found["in memory"][2:]) > 240


def test_messages_count_blank_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    text = [json.dumps({"n": n}) + "\n" * (1 + (n % 40 == 3)) for n in range(500)]  # a blank line behind 3, 43, ...
    path.write_text("\n" + "".join(text))
    table = opened("jsonl", path)
    assert isinstance(table, ConvertedTable)
    same(table, whole("jsonl", path, monkeypatch))
    lines = path.read_text().split("\n")
    for row in (0, 3, 4, 44, 300, 499):
        assert table.place(row) == f"row {lines.index(json.dumps({'n': row})) + 1} of {path}"
    assert table.skipped == ()
    for number, line in enumerate(lines):
        if line == '{"n": 300}':
            lines[number] = '{"n": 300'
            wanted = rf"row {number + 1} of .*a\.jsonl is not JSON"
    path.write_text("\n".join(lines))
    for read in (opened, lambda *given: whole(*given, monkeypatch)):
        with pytest.raises(SourceError, match=wanted):
            read("jsonl", path)
