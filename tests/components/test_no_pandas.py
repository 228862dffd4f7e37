"""pandas is no dependency: tables are read without it, whatever arrow would like to import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys


class NoPandas:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")


sys.meta_path.insert(0, NoPandas())
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from declarative_train.components.datasets import DATASETS

kinds = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double")
numbers = {kind: pa.array([1, 2, 3], kind) for kind in kinds}
numbers["halffloat"] = pa.array(np.array([1, 2, 3], np.float16))
more = {"bool": pa.array([True, None, False]), "text": pa.array(["a", "b", None]),
        "category": pa.array(["a", "b", "a"]).dictionary_encode(), "lists": pa.array([[1.0, 2.0]] * 3),
        "date": pa.array([0, 1, None], pa.date32()), "missing": pa.array([1, None, 3])}
pq.write_table(pa.table(numbers | more), "t.parquet")
open("t.csv", "w").write("a,b,c,d\\n1,1.5,x,2024-01-01\\n2,,y,2024-01-02\\n")
open("t.jsonl", "w").write('{"a": 1, "b": [1, 2]}\\n{"a": null, "b": [3, 4]}\\n')
for kind in ("parquet", "csv", "jsonl"):
    table = DATASETS.read({"type": kind, "path": f"t.{kind}"}).open()
    names = list(table.columns)
    read = table.read(names, np.arange(table.num_rows))
    print(kind, {name: column.dtype for name, column in table.columns.items()}, sorted(read) == sorted(names))
"""


def test_tables_are_read_without_pandas(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    parquet, csv, jsonl = done.stdout.splitlines()
    assert "'halffloat': 'float16', 'bool'" in parquet
    assert "'float': 'float32', 'double': 'float64'" in parquet
    assert "'uint64': 'uint64'" in parquet
    assert [line.endswith("True") for line in (parquet, csv, jsonl)] == [True] * 3
