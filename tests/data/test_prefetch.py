"""Loaders: results in order, errors where they belong, and nothing left behind when the reader goes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
import torch
from torch.utils.data._utils import worker

from declarative_train.data.prefetch import ahead, by_workers
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.spec import BatchSpec, DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.run.signals import STOP_SIGNALS, exit_process


def square(number: int) -> int:
    return number * number


def breaks_at_five(number: int) -> int:
    if number == 5:
        raise DataError("sample 7 is torn")
    return number


def children() -> list[int]:
    return [child.pid for child in multiprocessing.active_children() if child.pid is not None]


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dtrain-prefetch-0"]


@pytest.mark.parametrize("count", [0, 1, 20])
def test_results_come_in_order(count: int) -> None:
    wanted = [square(number) for number in range(3, 3 + count)]
    assert list(ahead(square, 3, count)) == wanted
    assert list(by_workers(square, 3, count, 2)) == wanted
    assert not readers()
    assert not children()


def test_an_error_comes_where_its_result_would_have() -> None:
    for made in (ahead(breaks_at_five, 0, 10), by_workers(breaks_at_five, 0, 10, 2)):
        assert [next(made) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(DataError, match="sample 7 is torn"):
            next(made)
    assert not readers()
    assert not children()


def test_leaving_early_ends_the_thread_and_the_processes() -> None:
    one = ahead(square, 0, 10**9)
    many = by_workers(square, 0, 1000, 3)
    assert [next(one), next(many), next(one), next(many)] == [0, 0, 1, 1]
    assert len(readers()) == 1
    assert len(children()) == 3
    one.close()  # type: ignore[attr-defined]
    many.close()  # type: ignore[attr-defined]
    assert not readers()
    assert not children()


def left(folder: Path) -> None:
    """Of a rank that leaves amid its data."""
    worker.MP_STATUS_CHECK_INTERVAL = 600.0  # how often a loader looks whether its parent is still there
    many = by_workers(square, 0, 1000, 2)
    next(many)
    (folder / "loaders").write_text(" ".join(map(str, children())))
    exit_process(3)


def test_a_process_that_leaves_takes_its_loaders_along(tmp_path: Path) -> None:
    """They hold open the pipe by which its parent knows that it is gone."""
    process = multiprocessing.get_context("fork").Process(target=left, args=(tmp_path,))
    process.start()
    process.join(20)
    gone = process.exitcode
    for number in map(int, (tmp_path / "loaders").read_text().split()):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    assert gone == 3


def test_the_thread_runs_only_a_little_ahead() -> None:
    made: list[int] = []
    results = ahead(lambda number: made.append(number), 0, 100)
    next(results)
    deadline = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert made == [0, 1, 2, 3]
    results.close()  # type: ignore[attr-defined]


def test_a_loader_that_is_killed_is_noticed() -> None:
    results = by_workers(square, 0, 100_000, 2)
    next(results)
    for child in children():
        os.kill(child, signal.SIGKILL)
    with pytest.raises(DataError, match="a loader process was lost"):
        for _ in results:
            pass
    assert not children()


def test_loaders_leave_the_random_numbers_alone() -> None:
    torch.manual_seed(0)
    wanted = torch.rand(3)
    torch.manual_seed(0)
    list(by_workers(square, 0, 3, 1))
    assert torch.equal(torch.rand(3), wanted)


def test_loaders_leave_the_signals_that_stop_a_run_to_the_rank() -> None:
    """Slurm sends them to every process of a step."""
    results = by_workers(square, 0, 100, 2)
    found = [next(results), next(results)]  # both loaders have begun
    for child, number in product(children(), STOP_SIGNALS):
        os.kill(child, number)
    assert [*found, *results] == [square(number) for number in range(100)]
    assert not children()


LEFT_OPEN = """
import time
from multiprocessing.process import BaseProcess
from declarative_train.data.prefetch import by_workers

kill = BaseProcess.kill


def kill_slowly(process):  # torch's handler of SIGCHLD runs before the process is joined
    kill(process)
    time.sleep(0.3)


BaseProcess.kill = kill_slowly
made = by_workers(abs, 0, 100_000, 2)
next(made)
"""


def test_an_iterator_that_is_left_open_does_not_hold_up_the_end() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""


def test_workers_make_the_same_batches_in_their_own_processes(spec: Callable[..., DataSpec]) -> None:
    keys: dict[str, object] = {
        "source": {"type": "synthetic", "kind": "classification", "rows": 53, "features": 3},
        "fields": {"x": {"column": "x"}, "y": {"column": "y"}},
    }
    inline, loaded = spec(**keys), spec(**keys, workers=2)
    sets = open_sets(loaded)
    batch = BatchSpec(16, 2, 2, 4, 1, 4)
    seen = 0
    made = TrainingBatches(loaded, batch, 1, sets).iterate(1, 9)
    for one, other in zip(made, TrainingBatches(inline, batch, 1, sets).iterate(1, 9), strict=True):
        seen = max(seen, len(children()))
        for first, second in zip(one, other, strict=True):
            assert first.sample_ids.tolist() == second.sample_ids.tolist()
            assert first.num_rows == second.num_rows
            assert torch.equal(first.tensors["x"], second.tensors["x"])
            assert (first.row_weight is None) == (second.row_weight is None)
    assert seen == 2
    assert not children()
    assert len(list(EvaluationBatches(loaded, "training", sets, batch_size=10).iterate())) == 6
