"""Sources of more files than a process may have open: opened, read, read after a fork, and described."""

from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from declarative_train.components.datasets import DATASETS
from declarative_train.components.datasets.npy import NpyDataset
from declarative_train.data.source import record_files
from declarative_train.files.paths import SourceError
from declarative_train.packs.text.text_files import TextDataset
from tests.engine.on_ranks import forked

FILES, LIMIT = 500, 200


def read(rank: int, kind: str, path: str, column: str, per_file: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
    table = DATASETS[kind].model_validate_json(json.dumps({"type": kind, "path": path})).open()
    count = table.num_rows
    assert count == per_file * FILES, count
    expected = np.repeat(np.arange(FILES), per_file) % 100
    rows = np.random.default_rng(0).permutation(count)

    def check() -> None:
        assert (table.read([column], slice(0, count))[column] % 100 == expected).all()
        assert (table.read([column], slice(3, count - 3))[column] % 100 == expected[3:-3]).all()
        assert (table.read([column], rows)[column] % 100 == expected[rows]).all()

    check()
    assert len(record_files(table.files)) == FILES
    for _ in range(2):  # as loaders and ranks do
        child = os.fork()
        if not child:
            check()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write(folder: Path, kind: str) -> None:
    for number in range(FILES):
        value = number % 100
        path = folder / f"{number:05d}"
        if kind == "parquet":
            parquet.write_table(pa.table({"n": [value, value]}), path.with_suffix(".parquet"))
        elif kind == "npz":
            np.savez(path.with_suffix(".npz"), n=np.asarray([value, value]))
        elif kind == "text":
            path.with_suffix(".text").write_bytes(bytes([value] * 3))
        elif kind == "csv":
            path.with_suffix(".csv").write_text(f"n\n{value}\n{value}\n")
        else:
            path.with_suffix(".jsonl").write_text(f'{{"n": {value}}}\n' * 2)


@pytest.mark.parametrize(
    ("kind", "source", "column", "per_file"),
    [
        ("parquet", "parquet", "n", 2),
        ("npz", "npy", "n", 2),
        ("text", "text", "tokens", 3),
        ("csv", "csv", "n", 2),
        ("jsonl", "jsonl", "n", 2),
    ],
)
def test_more_files_than_may_be_open(tmp_path: Path, kind: str, source: str, column: str, per_file: int) -> None:
    write(tmp_path, kind)
    forked(1, read, source, str(tmp_path / f"*.{kind}"), column, per_file)


@pytest.mark.parametrize("kind", ["text", "npz"])
def test_a_file_that_is_opened_once_more_must_be_the_same(tmp_path: Path, kind: str) -> None:
    for number in range(100):
        if kind == "text":
            (tmp_path / f"{number:03d}.text").write_bytes(b"abc")
        else:
            np.savez(tmp_path / f"{number:03d}.npz", n=np.zeros(3, np.uint8))
    pattern = str(tmp_path / f"*.{kind}")
    table = TextDataset(path=pattern).open() if kind == "text" else NpyDataset(path=pattern).open()
    (column,) = table.columns
    table.read([column], slice(0, 300))
    first = tmp_path / f"000.{kind}"
    os.utime(first, ns=(7, 7))
    table.read([column], slice(297, 300))
    with pytest.raises(SourceError, match=rf"000\.{kind} changed while it was being read"):
        table.read([column], np.asarray([0]))
