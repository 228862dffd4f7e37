"""Sources of plugins: columns are read without running them, and rows are held against them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.components.data import Column, Table
from declarative_train.components.datasets.plugin import PluginDataset
from declarative_train.components.plugin_components import find_plugin_component, read_plugin_components
from declarative_train.files.paths import SourceError
from tests.components.test_plugged import found_in

HEAD = """\
import datetime
import numpy as np
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, TensorDataset
from declarative_train.plugins import Source
"""
FIVE = "    def __len__(self): return 5\n"
ROW = "    def __getitem__(self, index): "


def dataset(folder: Path, text: str, **settings: Any) -> PluginDataset:
    """The only source of a file."""
    path = folder / f"p{len(list(folder.iterdir()))}.py"
    path.write_text(HEAD + text)
    (name,) = found_in(HEAD + text, str(path))["source"]
    kind = find_plugin_component("source", str(path), name)
    assert kind is not None
    made = kind.from_data({"type": name, **settings})
    assert isinstance(made, PluginDataset)
    return made


def opened(folder: Path, text: str, **settings: Any) -> Table:
    return dataset(folder, text, **settings).open()


def values(table: Table, *rows: int) -> dict[str, list[Any]]:
    return {name: each.tolist() for name, each in table.read(list(table.columns), np.asarray(rows)).items()}


def test_columns_are_known_without_running_the_code() -> None:
    columns = "{'x': {'dtype': 'float32', 'shape': (3, 2)}, 'y': {'dtype': 'int64', 'num_values': 4}, 'z': 'text'}"
    text = f"{HEAD}raise RuntimeError('it ran')\nclass Base(Dataset[int]):\n    columns = {columns}\n{FIVE}{ROW}...\n"
    found = found_in(text + "class MySource(Base): ...\n")["source"]
    assert sorted(found) == ["base", "my"]
    kind = found["my"].component
    outline = kind.from_data({"type": "my"}).outline()  # type: ignore[attr-defined]
    assert outline.columns == {
        "x": Column("x", "float32", (3, 2)),
        "y": Column("y", "int64", (), 4),
        "z": Column("z", "object"),
    }
    given = kind.from_data({"type": "my", "columns": {"a": "bool"}})
    assert given.outline().columns == {"a": Column("a", "bool")}  # type: ignore[attr-defined]
    assert given.settings() == {}


@pytest.mark.parametrize(
    ("text", "line", "words", "help"),
    [
        ("class A(IterableDataset):\n    def __iter__(self): ...\n", 1, "is an IterableDataset", "by number"),
        ("class A(Dataset):\n" + FIVE, 1, "the source `A` has no `__getitem__` or `read`", "def __getitem__"),
        ("class A(Dataset):\n" + ROW + "...\n", 1, "the source `A` has no `__len__`", "def __len__"),
        ("class A(Source):\n" + FIVE + "    def read(self): ...\n", 3, "takes 0 arguments", "rows, columns"),
        ("class A(TensorDataset): ...\n", 1, "has no `__init__` of its own", "self, root: str"),
        ("class A(Dataset):\n    columns = {'x': 'float'}\n" + FIVE + ROW + "...\n", 2, "at `x`", "columns = {"),
        ("class A(Dataset):\n    columns = [3]\n" + FIVE + ROW + "...\n", 2, "does not describe", "columns = {"),
        ("class A(Dataset):\n    columns = dict(x='int64')\n" + FIVE + ROW + "...\n", 2, "not describe", "columns ="),
        ("class A(Dataset):\n    columns = {'x': {'dtype': 'text', 'shape': [3]}}\n" + FIVE + ROW + "...\n", 2,
         "at `x`", "columns ="),
        ("class A(Dataset):\n    def __init__(self, columns): ...\n" + FIVE + ROW + "...\n", 2, "an argument of", ""),
        ("class A(Dataset):\n    def __init__(self, _hidden): ...\n" + FIVE + ROW + "...\n", 2, "`_hidden`", "case"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_at_its_place(text: str, line: int, words: str, help: str) -> None:
    _, problems = read_plugin_components("/nowhere/p.py", HEAD + text, may_import=False)
    assert [each.line for each in problems] == [line + HEAD.count("\n")], problems
    assert words in problems[0].message
    assert help in (problems[0].help or "")


def test_private_classes_and_functions_are_no_sources() -> None:
    text = HEAD + f"class _Hidden(Dataset):\n{FIVE}\ndef rows(): ...\nmade = TensorDataset(torch.zeros(3))\n"
    assert not found_in(text)["source"]


ALL_KINDS = f"""
class All(Dataset):
{FIVE}{ROW}return {{
        "float": float(index), "int": index, "bool": index > 2, "text": str(index), "bytes": bytes([index]),
        "date": datetime.date(2024, 1, 1 + index), "array": np.full((2, 3), index, np.uint8),
        "tensor": torch.full((2,), index, dtype=torch.bfloat16), "list": [index, 1.5],
        "picture": Image.new("L", (2 + index, 3), index), "scalar": torch.tensor(index, dtype=torch.int32),
    }}
"""


def test_what_a_row_gives_becomes_columns(tmp_path: Path) -> None:
    table = opened(tmp_path, ALL_KINDS)
    assert table.num_rows == 5
    assert [(each.name, each.dtype, each.shape) for each in table.columns.values()] == [
        ("float", "float64", ()), ("int", "int64", ()), ("bool", "bool", ()), ("text", "object", ()),
        ("bytes", "bytes", ()), ("date", "datetime64[ns]", ()), ("array", "uint8", (2, 3)),
        ("tensor", "float32", (2,)), ("list", "float64", (2,)), ("picture", "bytes", ()), ("scalar", "int32", ()),
    ]  # fmt: skip
    names = list(table.columns)
    found = table.read(names, np.asarray([3, 1, 3]))
    for name, each in found.items():
        wanted = {"text": "object", "bytes": "object", "picture": "object"}.get(name, table.columns[name].dtype)
        assert each.dtype == wanted
        assert len(each) == 3
    assert found["float"].tolist() == [3, 1, 3]
    assert found["text"].tolist() == ["3", "1", "3"]
    assert found["bytes"].tolist() == [b"\x03", b"\x01", b"\x03"]
    assert found["date"].astype("datetime64[D]").astype(str).tolist() == ["2024-01-04", "2024-01-02", "2024-01-04"]
    assert found["array"][:, 1, 2].tolist() == [3, 1, 3]
    assert found["tensor"][:, 1].tolist() == [3, 1, 3]
    assert [each.size for each in found["picture"]] == [(5, 3), (3, 3), (5, 3)]
    everything = table.read(names, slice(0, 5))
    assert everything["scalar"].tolist() == [0, 1, 2, 3, 4]
    assert table.read(names, slice(5, 5))["array"].shape == (0, 2, 3)


def test_tuples_are_named_by_the_declaration_or_by_their_place(tmp_path: Path) -> None:
    text = f"class A(Dataset):\n{FIVE}{ROW}return torch.ones(2) * index, index % 2\n"
    assert list(opened(tmp_path, text).columns) == ["item_0", "item_1"]
    table = opened(tmp_path, text, columns={"x": {"dtype": "float32", "shape": [2]}, "y": "int64"})
    assert values(table, 1, 4) == {"x": [[1, 1], [4, 4]], "y": [1, 0]}
    single = opened(tmp_path, f"class A(Dataset):\n{FIVE}{ROW}return index * 1.5\n")
    assert values(single, 2) == {"value": [3.0]}


def test_classes_of_torch_are_sources_with_their_methods(tmp_path: Path) -> None:
    text = "class PairMixer(TensorDataset):\n    def __init__(self, rows: int):\n"
    table = opened(tmp_path, text + "        super().__init__(torch.arange(rows), torch.ones(rows, 3))\n", rows=7)
    assert table.num_rows == 7
    assert values(table, 6) == {"item_0": [6], "item_1": [[1, 1, 1]]}


def test_missing_values_are_those_of_tables(tmp_path: Path) -> None:
    columns = {"a": "int64", "b": "float32", "c": "text", "d": "date", "e": "bytes"}
    present = "(index, 1.0, 'x', np.datetime64(0, 's'), b'')"
    text = f"class A(Dataset):\n{FIVE}{ROW}return (None,) * 5 if index == 2 else {present}\n"
    table = opened(tmp_path, text, columns=columns)
    found = table.read(list(columns), np.asarray([1, 2]))
    assert found["a"].dtype == np.float64
    assert found["a"][0] == 1
    assert np.isnan([found["a"][1], found["b"][1]]).all()
    assert (found["c"][1], found["e"][1]) == (None, None)
    assert np.isnat(found["d"][1])
    assert table.read(["a"], np.asarray([0, 1]))["a"].dtype == np.int64


@pytest.mark.parametrize(
    ("row", "columns", "words"),
    [
        ("torch.zeros(3) if index < 4 else torch.zeros(2)", None,
         "`value` is float32 of shape (2,) in row 5 (index 4) of `a`, but float32 of shape (3,) in the first row"),
        ("torch.zeros(3)", {"x": "float32"},
         "`x` is float32 of shape (3,) in row 1 (index 0) of `a`, but float32 is declared"),
        ("np.zeros(3)", {"x": {"dtype": "float32", "shape": [3]}}, "`x` is float64 of shape (3,) in row 1"),
        ("(1, 2)", {"x": "int64"}, "row 1 (index 0) of `a` gives 2 values, and the columns are `x`"),
        ("{'y': 1}", {"x": "int64"}, "row 1 (index 0) of `a` has no `x`: it gives `y`"),
        ("1.5", {"x": "int64"}, "`x` is the float 1.5 in row 1 (index 0) of `a`, but int64 is declared"),
        ("300", {"x": "uint8"}, "`x` is the int 300 in row 1 (index 0) of `a`, but uint8 is declared"),
        ("10 ** 30", {"x": "int64"}, "`x` is a int in row 1"),
        ("'a'", {"x": "bytes"}, "`x` is a text in row 1 (index 0) of `a`, but bytes is declared"),
        ("None", {"x": {"dtype": "float32", "shape": [2]}}, "`x` is None in row 1"),
        ("{'boxes': {'n': 3}}", None, "`boxes` is a dict in row 1 (index 0) of `a`, which a column cannot hold"),
        ("torch.rand(3)", None, "`a` draws random numbers when a row is read"),
        ("self.count()", None, "`value` of `a` changes when a row is read again"),
        ("{}[index]", None, "`__getitem__` fails for row 1 (index 0) of `a`: KeyError: 0; "),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_with_row_and_column(
    row: str, columns: dict[str, Any] | None, words: str, tmp_path: Path
) -> None:
    counting = "    calls = 0\n    def count(self):\n        self.calls += 1\n        return self.calls\n"
    with pytest.raises(SourceError) as error:
        opened(tmp_path, f"class A(Dataset):\n{counting}{FIVE}{ROW}return {row}\n", columns=columns)
    assert words in str(error.value)
    assert error.value.problem == "plugin"
    assert error.value.help or "fails" in words


def test_what_the_code_raises_names_row_file_and_line(tmp_path: Path) -> None:
    text = f"""class A(Dataset):
{FIVE}
    def __getitem__(self, index):
        return self.inner(index)

    def inner(self, index):
        if index == 3:
            raise ValueError("a torn header")
        return index
"""
    table = opened(tmp_path, text)
    line = (HEAD + text).splitlines().index('            raise ValueError("a torn header")') + 1
    with pytest.raises(
        SourceError, match=rf"row 4 \(index 3\) of `a`: ValueError: a torn header; .*p0.py, line {line}$"
    ):
        table.read(["value"], np.arange(5))
    with pytest.raises(SourceError, match=r"creating the object of `a` fails: OSError: no; .*p\d.py, line"):
        opened(tmp_path, f"class A(Dataset):\n    def __init__(self): raise OSError('no')\n{FIVE}{ROW}return 1\n")


def test_rows_several_at_once(tmp_path: Path) -> None:
    text = """class Squares(Source):
    columns = {"x": {"dtype": "float32", "shape": (2,)}, "n": "int64"}
    def __len__(self): return 9
    def read(self, rows, columns):
        every = {"x": np.stack([rows, rows ** 2], 1).astype(np.float32), "n": rows}
        return {name: every[name] for name in columns}
"""
    table = opened(tmp_path, text)
    assert values(table, 3, 0, 3) == {"x": [[3, 9], [0, 0], [3, 9]], "n": [3, 0, 3]}
    with pytest.raises(SourceError, match="`read` gives 3 values of `n` for 2 rows"):
        opened(tmp_path, text.replace('"n": rows', '"n": np.zeros(len(rows) + 1, np.int64)'))
    with pytest.raises(SourceError, match=r"`x` is float64 of shape .2,. in row 1"):
        opened(tmp_path, text.replace(".astype(np.float32)", " * 1.0"))
    with pytest.raises(SourceError, match="does not say which columns `read` gives"):
        opened(tmp_path, text.replace("    columns =", "    other ="))
    one = text.replace("rows, columns):", "rows):").replace("{name: every[name] for name in columns}", "every")
    assert values(opened(tmp_path, one), 2) == {"x": [[2, 4]], "n": [2]}


def test_a_number_is_asked_for_once(tmp_path: Path) -> None:
    text = f"class A(Dataset):\n    asked = []\n{FIVE}{ROW}return self.asked.append(index) or (index, str(index))\n"
    table = opened(tmp_path, text)
    asked = table._made.asked  # type: ignore[attr-defined]
    asked.clear()
    assert table.read(["item_1"], np.arange(5))["item_1"].tolist() == list("01234")
    assert table.read(["item_0"], np.asarray([4, 2]))["item_0"].tolist() == [4, 2]
    assert asked == [0, 1, 2, 3, 4]


CLOSES = "    def __del__(self): self.file.close()\n"
DRAWN = f"class A(Dataset):\n    def __init__(self): self.x = torch.randn(5)\n{FIVE}{ROW}return self.x[index]\n"


def _numbers(table: Table, queue: Any) -> None:
    queue.put((os.getpid(), values(table, 0, 3)))


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_another_process_reads_the_same(start: str, tmp_path: Path) -> None:
    """What is drawn when it is made too; and a file is not read at a position that both move."""
    (tmp_path / "data.txt").write_bytes(bytes(range(5)))
    reads = f"class B(Dataset):\n    def __init__(self, path: str): self.file = open(path, 'rb')\n{CLOSES}{FIVE}"
    reads += "    def __getitem__(self, index):\n        self.file.seek(index)\n        return self.file.read(1)\n"
    context: Any = multiprocessing.get_context(start)
    for table in (opened(tmp_path, DRAWN), opened(tmp_path, reads, path=str(tmp_path / "data.txt"))):
        queue = context.Queue()
        process = context.Process(target=_numbers, args=(table, queue))
        process.start()
        there, found = queue.get(timeout=60)
        process.join(60)
        assert there != os.getpid()
        assert found == values(table, 0, 3)


def test_files_and_draws_together_are_refused(tmp_path: Path) -> None:
    text = DRAWN.replace("self.x =", "self.file, self.x = open(__file__),").replace(FIVE, CLOSES + FIVE)
    with pytest.raises(SourceError, match="draws random numbers and opens files when it is made"):
        opened(tmp_path, text)


def test_it_is_pickled_by_how_it_is_made(tmp_path: Path) -> None:
    table = opened(tmp_path, DRAWN)
    assert values(pickle.loads(pickle.dumps(table)), 0, 1) == values(table, 0, 1)
