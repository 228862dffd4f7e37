"""Folders of safetensors as a source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from declarative_train.components.data import Table
from declarative_train.components.datasets import DATASETS
from declarative_train.files.paths import SourceError

torch_files = pytest.importorskip("safetensors.torch")
SIZES = (40, 1, 73)


def opened(path: object) -> Table:
    return DATASETS.read({"type": "safetensors", "path": path}).open()


def tensors(first: int, size: int) -> dict[str, torch.Tensor]:
    ids = torch.arange(first, first + size)
    return {
        "id": ids,
        "x": torch.stack([ids.float(), ids * 2.0], 1),
        "half": (ids.float() / 8).bfloat16()[:, None, None].expand(-1, 2, 3).contiguous(),
        "small": (ids % 100).to(torch.uint8),
        "even": ids % 2 == 0,
        "mean": torch.zeros(7),
        "one": torch.tensor(1.0),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    first = 0
    for number, size in enumerate(SIZES):
        torch_files.save_file(tensors(first, size), tmp_path / f"{number}.safetensors", {"made": "here"})
        first += size
    return tmp_path


def test_a_folder_is_a_table_of_its_tensors(folder: Path) -> None:
    table = opened(str(folder))
    assert table.num_rows == 114
    assert {name: (column.dtype, column.shape) for name, column in table.columns.items()} == {
        "even": ("bool", ()),
        "half": ("float32", (2, 3)),
        "id": ("int64", ()),
        "small": ("uint8", ()),
        "x": ("float32", (2,)),
    }
    assert table.left_out == {"mean": "it has 7 rows where most have 73", "one": "it is a single value"}
    wanted = {name: each.float().numpy() for name, each in tensors(0, 114).items()}
    draw = np.random.default_rng(0).integers(0, 114, 200)
    for rows in (slice(0, 114), slice(3, 30), slice(39, 42), slice(5, 5), draw):
        for name, values in table.read(list(table.columns), rows).items():
            assert values.dtype == table.columns[name].dtype
            np.testing.assert_array_equal(values.astype(np.float32), wanted[name][rows])
    assert table.place(41) == f"row 1 of {folder / '2.safetensors'}"
    assert opened([str(folder / "0.safetensors")]).num_rows == 40


def test_files_of_another_machine_are_read_by_range(folder: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in folder.glob("*.safetensors"):
        memory.pipe(f"/tensors/{path.name}", path.read_bytes())
    table, here = opened("memory://tensors/*.safetensors"), opened(str(folder))
    for rows in (slice(2, 100), np.asarray([113, 0, 41, 2]), np.asarray([113, 41])):
        for name, values in table.read(list(table.columns), rows).items():
            np.testing.assert_array_equal(values, here.read([name], rows)[name])


def header(path: Path, items: Mapping[str, object], content: bytes = b"") -> Path:
    text = json.dumps(items).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)
    return path


@pytest.mark.parametrize(
    ("items", "content", "said"),
    [
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, b"abc", "ends inside the tensor `x`"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"abcdefgh", "do not match its shape"),
        ({"x": {"dtype": "F32"}}, b"", "its header is not valid"),
        ({"x": {"dtype": "F32", "shape": [1], "data_offsets": ["a", 4]}}, b"abcd", "its header is not val"),
        (
            {"x": {"dtype": "F32", "shape": [1], "data_offsets": [4]}},
            b"abcd",
            "its header is not valid",
        ),
        ({}, b"", "holds no tensor"),
        (
            {
                "x": {"dtype": "U8", "shape": [4], "data_offsets": [2, 6]},
                "y": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]},
            },
            b"abcdef",
            "the tensors `y` and `x` overlap",
        ),
    ],
)
def test_files_that_are_none_say_so(tmp_path: Path, items: Mapping[str, object], content: bytes, said: str) -> None:
    with pytest.raises(SourceError, match=said):
        opened(str(header(tmp_path / "a.safetensors", items, content)))


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path, entry = tmp_path / "a.safetensors", b'"x": {"dtype": "U8", "shape": [1], "data_offsets": [%d, %d]}'
    text = b"{%s, %s}" % (entry % (0, 1), entry % (1, 2))
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"ab")
    with pytest.raises(SourceError, match="its header has the name `x` twice"):
        opened(str(path))


def test_files_that_do_not_fit_each_other_say_so(folder: Path) -> None:
    torch_files.save_file({"id": torch.arange(3)}, folder / "3.safetensors")
    with pytest.raises(SourceError, match="lacks"):
        opened(str(folder))
    torch_files.save_file(tensors(0, 9) | {"x": torch.zeros(9, 3)}, folder / "3.safetensors")
    with pytest.raises(SourceError, match=r"`x` holds F32 of \(3\) in .*3\.safetensors and F32 of \(2\)"):
        opened(str(folder))
    (folder / "3.safetensors").write_text("no tensors at all")
    with pytest.raises(SourceError, match="it is not a safetensors file"):
        opened(str(folder))
