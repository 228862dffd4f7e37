"""Held sets that one process prepares and others map."""

from __future__ import annotations

import base64
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from declarative_train.data import shared_sets
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.run.torchrun import share_sets

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memory without a name")

Spec = Callable[..., DataSpec]

CHILD = """
import base64, pickle, sys
import numpy as np
from declarative_train.data import shared_sets
spec, made = pickle.loads(base64.b64decode(sys.stdin.read()))
shared_sets._prepare_all = None
assert shared_sets.accept(spec, made)
sets = shared_sets.prepare_sets(spec)
held = sets["training"].held["x"]
print(int(held.sum()), sets["validation"].num_samples, sets["training"].num_samples)
held[:] = 0
print(sum("memfd:dtrain-held" in line for line in open("/proc/self/maps")))
"""


@pytest.fixture
def data(tmp_path: Path, spec: Spec) -> DataSpec:
    lines = "\n".join(f"{number},{2 * number}" for number in range(5000))
    (tmp_path / "a.csv").write_text(f"a,b\n{lines}\n")
    found = spec(
        source={"type": "csv", "path": str(tmp_path / "a.csv")},
        fields={"x": {"columns": ["a"]}, "y": {"columns": ["b"]}},
        split={"validation": 0.1},
    )
    shared_sets._latest.clear()
    return found


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each time that files are read."""
    times: list[int] = []
    whole = shared_sets._prepare_all

    def counted(spec: DataSpec) -> dict[str, PreparedSet]:
        times.append(1)
        return whole(spec)

    monkeypatch.setattr(shared_sets, "_prepare_all", counted)
    return times


def test_another_process_maps_what_one_has_prepared(data: DataSpec) -> None:
    before = {name: tensor.clone() for name, tensor in open_sets(data)["training"].gather(np.arange(4500)).items()}
    made = shared_sets.offer(data)
    assert made is not None
    given = base64.b64encode(pickle.dumps((data, made)))
    done = subprocess.run([sys.executable, "-c", CHILD], input=given, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    total, validation, training, mappings = map(int, done.stdout.split())
    assert (total, validation, training) == (int(before["x"].double().sum()), 500, 4500)
    assert mappings
    found = open_sets(data)["training"].gather(np.arange(4500))  # what the other wrote there stayed its own
    assert all(torch.equal(found[name], before[name]) for name in before)
    os.close(made.file)
    assert not shared_sets.accept(data, made)  # as where its process is gone
    assert not shared_sets.accept(data, made._replace(file=2**20))


def test_one_rank_of_a_machine_prepares(data: DataSpec, prepared: list[int]) -> None:
    store = HashStore()
    for rank in (0, 1, 2):
        shared_sets._latest.clear()  # each is a process of its own
        share_sets(data, rank, "one", ("one", "one", "one"), store)
        assert open_sets(data)["training"].is_held
    assert len(prepared) == 1
    for rank, host in enumerate(("two", "three")):
        shared_sets._latest.clear()
        share_sets(data, rank, host, ("two", "three"), store)
        open_sets(data)
    assert len(prepared) == 3


def test_what_is_not_held_is_opened_by_each(
    data: DataSpec, prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sets, "HOLD_BYTES", 0)
    store = HashStore()
    for rank in (0, 1):
        shared_sets._latest.clear()
        share_sets(data, rank, "one", ("one", "one"), store)
        assert not prepare_sets(data)["training"].is_held
    assert len(prepared) == 2


def test_data_that_cannot_be_read_are_told_by_each(data: DataSpec, tmp_path: Path) -> None:
    (tmp_path / "a.csv").unlink()
    store = HashStore()
    with pytest.raises(DataError):
        share_sets(data, 0, "one", ("one", "one"), store)
    share_sets(data, 1, "one", ("one", "one"), store)
    with pytest.raises(DataError):
        prepare_sets(data)
