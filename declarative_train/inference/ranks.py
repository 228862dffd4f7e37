"""Call of a function in several processes of this machine, which communicate through gloo. If a process raises an
error, all processes are stopped."""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from declarative_train.data.spec import DataError
from declarative_train.engine.collectives import Ranks
from declarative_train.engine.devices import safe_threads, threads_per_rank
from declarative_train.engine.failures import VICTIM_WAIT_S, RunFailure, describe_failure, explain, limit_s
from declarative_train.inference.input import InputError
from declarative_train.inference.trained import UsageError
from declarative_train.run.network import LOOPBACK
from declarative_train.run.processes import start_method

T = TypeVar("T")
Act = Callable[[Ranks], T]
_USER_ERRORS: tuple[type[Exception], ...] = (
    InputError,
    UsageError,
    DataError,
    RunFailure,
)  # errors whose message is for the user


def run_ranks(num: int, device_kind: str, act: Act[T]) -> T:
    """Call `act` in `num` processes, and return the result of rank 0. `act`: function that takes the collective over
    all these processes. `device_kind`: cpu or cuda, which decides whether processes may be forked. Raises the first
    exception of a process, or RunFailure if a process died."""
    method = start_method(device_kind)
    context = multiprocessing.get_context(method)
    threads = threads_per_rank(num)
    threads = safe_threads(threads) if method == "fork" else threads
    with tempfile.TemporaryDirectory(prefix="dtrain-ranks-") as folder:
        store = str(Path(folder) / "store")
        pipes: list[Connection] = []
        processes: list[Any] = []
        try:
            for rank in range(num):
                mine, theirs = context.Pipe(duplex=False)  # one by one: no rank inherits the sending end of another
                arguments = (rank, num, store, threads, act, theirs)
                processes.append(context.Process(target=_rank, args=arguments, daemon=True))  # type: ignore[attr-defined]
                processes[-1].start()
                theirs.close()
                pipes.append(mine)
            found: T = _collect(pipes, num)
            return found
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(pipes: list[Connection], num: int) -> Any:
    """Wait for the results of all ranks, and return that of rank 0. `pipes`: the pipe of each rank. `num`: number of
    ranks, for messages. Raises the first error that a rank sends, or RunFailure if a rank ends without a result."""
    found: dict[int, Any] = {}
    left: dict[Any, int] = {pipe: rank for rank, pipe in enumerate(pipes)}
    while left:
        for pipe in wait(list(left)):
            rank = left.pop(pipe)
            try:
                value, error = _receive(pipe)
            except EOFError:
                raise RunFailure(
                    f"rank {rank} of {num} was lost, possibly out of memory; help: a smaller --batch-size, or fewer "
                    "--ranks"
                ) from None
            if error is not None:
                kind, text = error
                raise kind(text)
            found[rank] = value
    return found[0]


def _receive(pipe: Any) -> tuple[Any, tuple[type[Exception], str] | None]:
    found: tuple[Any, tuple[type[Exception], str] | None] = pipe.recv()
    return found


def _rank(rank: int, num: int, store: str, threads: int, act: Act[Any], parent: Connection) -> None:
    import torch
    from torch import distributed

    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    torch.set_num_threads(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
    error: tuple[type[Exception], str] | None = None
    value = None
    try:
        limit = timedelta(seconds=limit_s("DTRAIN_TIMEOUT_S"))
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num, timeout=limit)
        value = act(Ranks())
    except Exception as problem:
        if describe_failure(problem, rank, None, None, None).is_peer_loss:
            time.sleep(VICTIM_WAIT_S)  # so that the rank that caused the failure reports first
        if isinstance(problem, _USER_ERRORS):
            error = next(kind for kind in _USER_ERRORS if isinstance(problem, kind)), str(problem)
        else:
            error = RunFailure, f"rank {rank} of {num}: {explain(problem)}"
    parent.send((value if rank == 0 else None, error))
    parent.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without destroying the process group, which may hang


def _end_with(parent: int) -> None:
    """Wait until `parent` is no longer the parent of this process, then exit. A rank must not outlive the process that
    started it."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
