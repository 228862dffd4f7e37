"""Arrow files: files and streams of record batches, packed or not, and folders that `save_to_disk` writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from declarative_train.components.datasets.arrow import ArrowDataset
from declarative_train.files.paths import SourceError

ROWS = 250


def table() -> pa.Table:
    words = pa.array([None if row % 7 == 0 else f"w{row % 3}" for row in range(ROWS)]).dictionary_encode()
    return pa.table({"n": np.arange(ROWS), "x": np.arange(ROWS) / 2, "word": words})


def write(path: Path, made: pa.Table, *, stream: bool = False, packed: bool = False) -> None:
    options = ipc.IpcWriteOptions(compression="zstd" if packed else None)
    new = ipc.new_stream if stream else ipc.new_file
    with new(str(path), made.schema, options=options) as writer:
        for batch in made.to_batches(max_chunksize=32):
            writer.write_batch(batch)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_files_and_streams(tmp_path: Path, stream: bool, packed: bool) -> None:
    write(tmp_path / "a.arrow", table().slice(0, 100), stream=stream, packed=packed)
    write(tmp_path / "b.arrow", table().slice(100), stream=stream, packed=packed)
    found = ArrowDataset(path=str(tmp_path / "*.arrow")).open()
    assert found.num_rows == ROWS
    assert found.blocks is not None
    assert found.blocks.tolist() == [0, 32, 64, 96, 100, 132, 164, 196, 228, 250]
    rows = np.random.default_rng(0).permutation(ROWS)
    read = found.read(["n", "x", "word"], rows)
    assert (read["n"] == rows).all()
    assert (read["x"] == rows / 2).all()
    assert read["word"].tolist() == [None if row % 7 == 0 else f"w{row % 3}" for row in rows]
    assert (found.read_once(["n"], slice(90, 140))["n"] == np.arange(90, 140)).all()
    assert found.place(105).startswith("row 6 of ")


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="pyarrow 15 has none")
def test_texts_that_are_views_are_read(tmp_path: Path) -> None:
    """As polars writes them; they were refused."""
    words, view = ["a", None, "b"], pa.string_view()
    pieces = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int32()), pa.array(["a", "b"], view))
    file = pa.array([{"bytes": b"x", "path": "p"}] * 3, pa.struct([("bytes", pa.binary_view()), ("path", view)]))
    chat = pa.array([[{"role": "user"}]] * 3, pa.list_(pa.struct([("role", view)])))
    plain = {"word": pa.array(words, view), "kind": pieces, "file": file, "chat": chat}
    lists = {
        "names": pa.array([["a"], [], ["b", "c"]], pa.large_list(view)),
        "raw": pa.array([b"y"] * 3, pa.binary_view()),
    }
    write(tmp_path / "a.arrow", pa.table(plain | lists))
    found = ArrowDataset(path=str(tmp_path / "a.arrow")).open()
    assert {name: column.dtype for name, column in found.columns.items()} == {
        "word": "object", "kind": "object", "file": "bytes", "chat": "messages", "names": "lists", "raw": "bytes"
    }  # fmt: skip
    read = found.read(list(found.columns), np.asarray([2, 1, 0]))
    assert read["word"].tolist() == read["kind"].tolist() == ["b", None, "a"]
    assert read["file"].tolist() == [b"x"] * 3
    assert read["raw"].tolist() == [b"y"] * 3
    assert read["chat"].tolist() == ['[{"role": "user"}]'] * 3
    assert read["names"].tolist() == ['["b", "c"]', "[]", '["a"]']


def test_feather_is_read(tmp_path: Path) -> None:
    feather.write_feather(table(), str(tmp_path / "a.feather"))
    assert ArrowDataset(path=str(tmp_path / "a.feather")).open().num_rows == ROWS


def test_a_folder_that_save_to_disk_wrote(tmp_path: Path) -> None:
    for name in ("train", "test"):
        folder = tmp_path / "set" / name
        folder.mkdir(parents=True)
        files = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
        for number, file in enumerate(files):
            write(folder / file, table().slice(125 * number, 125), stream=True)
        write(folder / "cache-1234.arrow", table(), stream=True)  # of `map`: no part of the set
        state = {"_data_files": [{"filename": file} for file in files], "_fingerprint": "1"}
        (folder / "state.json").write_text(json.dumps(state))
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = ArrowDataset(path=str(tmp_path / "set" / "train")).open()
    assert (found.read(["n"], slice(0, ROWS))["n"] == np.arange(ROWS)).all()
    with pytest.raises(SourceError, match=r"is a folder without `state\.json`") as caught:
        ArrowDataset(path=str(tmp_path / "set")).open()
    assert caught.value.help == "it holds several sets: name the folder of one, test, train"
    state["_indices_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "set" / "test" / "state.json").write_text(json.dumps(state))
    with pytest.raises(SourceError, match="a selection of rows by number"):
        ArrowDataset(path=str(tmp_path / "set" / "test")).open()


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"ARROW1\0\0cut off", b"\xff" * 100])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(SourceError, match=r"a\.arrow"):
        ArrowDataset(path=str(tmp_path / "a.arrow")).open()
