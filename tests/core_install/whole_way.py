"""Tables of every kind of column, read in every format, and from a csv to answers, with the packages named on the
command line hidden as if they were not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, ClassVar


class Hidden(PathFinder):
    """Finds what Python finds, but for the named packages, and their distributions."""

    names: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def hide(cls, names: Sequence[str]) -> None:
        cls.names = frozenset(names)
        places = metadata.packages_distributions()
        gone = {name for module in cls.names for name in places.get(module, ())}
        real = metadata.Distribution.from_name

        def from_name(name: str) -> metadata.Distribution:
            found = real(name)
            if found.metadata["Name"] in gone:
                raise metadata.PackageNotFoundError(name)
            return found

        metadata.Distribution.from_name = staticmethod(from_name)  # type: ignore[method-assign]
        sys.meta_path[sys.meta_path.index(PathFinder)] = cls

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in cls.names else super().find_spec(fullname, path, target)


def write_tables() -> list[str]:
    import datetime
    import decimal

    import pyarrow as pa
    from pyarrow import csv, feather, parquet

    numbers = {f"{kind}": pa.array([1, 2, 3], kind) for kind in (pa.int8(), pa.uint16(), pa.int64(), pa.float32())}
    table = pa.table(
        {
            **numbers,
            "half": pa.array([1.0, 2.0, 3.0], pa.float16()),
            "truth": [True, False, True],
            "missing": pa.array([1, None, 3]),
            "none": pa.nulls(3),
            "text": ["a", None, "c"],
            "words": pa.array(["a", "b", "a"]).dictionary_encode(),
            "day": [datetime.date(2026, 1, day) for day in (1, 2, 3)],
            "moment": pa.array([datetime.datetime(2026, 1, day) for day in (1, 2, 3)], pa.timestamp("s")),
            "price": pa.array([decimal.Decimal("1.5")] * 3),
            "list": pa.array([[1.0, 2.0]] * 3),
            "fixed": pa.array([[1, 2]] * 3, pa.list_(pa.int32(), 2)),
        }
    )
    parquet.write_table(table, "all.parquet")
    feather.write_feather(table, "all.arrow", compression="uncompressed")
    csv.write_csv(table.drop_columns(["words", "list", "fixed", "half"]), "all.csv")
    with open("all.jsonl", "w", encoding="utf-8") as file:
        file.writelines(f'{{"x": {row}, "day": "2026-01-0{row + 1}", "v": [1, {row}]}}\n' for row in range(3))
    return ["all.parquet", "all.csv", "all.jsonl"]


def read(path: str) -> None:
    import numpy as np

    from declarative_train.components.datasets import DATASETS

    table = DATASETS[path.rpartition(".")[2]].model_validate({"type": path.rpartition(".")[2], "path": path}).open()
    for name in table.columns:
        assert len(table.read([name], np.arange(3))[name]) == 3, (path, name)


def whole_way() -> None:
    from declarative_train.__main__ import main

    with open("flowers.csv", "w", encoding="utf-8") as file:
        file.write("length,width,colour,kind\n")
        file.writelines(f"{i % 7 + i % 2 * 3},{i % 5},{'red' if i % 2 else 'blue'},{'ab'[i % 2]}\n" for i in range(60))
    commands = (
        ["init", "--from", "flowers.csv", "--target", "kind"],
        ["lint", "flowers.yaml"],
        ["plan", "flowers.yaml"],
        ["run", "flowers.yaml", "--max-steps", "3", "--run-dir", "runs/one"],
        ["runs", "runs"],
        ["evaluate", "runs/one"],
        ["predict", "runs/one", "flowers.csv", "-o", "answers.csv"],
        ["export", "runs/one", "--to", "state-dict", "-o", "out"],
        ["doctor"],
    )
    for command in commands:
        assert main(command) == 0, command


if __name__ == "__main__":
    Hidden.hide(sys.argv[1:])
    for made in write_tables():
        read(made)
    whole_way()
    print("the whole way")
