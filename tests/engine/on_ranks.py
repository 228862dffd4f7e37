"""A function on the ranks of a plan: forked by torch's elastic launcher as a run's are, what each returns, in order.

def seen(plan):                             # in each rank, its process group joined
    with kept_engine(plan) as engine: ...
found = on_ranks(plan, seen, plan)

Without a plan, for what needs a process group alone: `forked(2, look, *words)` calls `look(rank, *words)`.
"""

from __future__ import annotations

import atexit
import os
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch
from torch import distributed

from declarative_train.engine.axes import (
    pipeline,  # noqa: F401  # once here, not in each forked rank
    shard,  # noqa: F401  # once here, not in each forked rank
)
from declarative_train.engine.devices import start_autograd
from declarative_train.engine.engine import Engine
from declarative_train.engine.step.precision import default_dtype
from declarative_train.engine.step.randomness import deterministic_kernels
from declarative_train.plan.plan import Plan
from declarative_train.run.processes import join_process_group, round_store, silence_loggers
from declarative_train.run.rendezvous import LOCALHOST, StoreServer, connect_from_environment, launch_config, listen
from tests.started import server

Seen = TypeVar("Seen")
_ALIVE: list[object] = []
start_autograd()  # before a test uses fake tensors, after which nothing could be forked on a CUDA build


def on_ranks(
    plan: Plan, look: Callable[..., Seen], *words: object, device: str = "cpu", spawns: bool = False
) -> list[Seen]:
    """`look(*words)` of each rank; without ranks, here. All ranks share a device that is not the CPU. On a machine with
    a GPU no process can be forked any more that could compute, after a backward even on the CPU: `spawns`."""
    if plan.layout.is_one_process:
        return [look(*words)]
    torch.set_num_threads(1)
    import_module("torch._dynamo")  # before the fork, as the launcher does
    from torch.distributed.launcher.api import elastic_launch

    silence_loggers()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = StoreServer(listen(LOCALHOST, 0, ""), forks=not spawns)
    with TemporaryDirectory() as scratch, store:
        where = (LOCALHOST, store.port)
        config = launch_config(len(plan.layout.ranks), Path(scratch), "spawn" if spawns else "fork", where)
        called = _as_spawned if spawns else _as_rank
        found = elastic_launch(config, called)(look, words, device)
    return [found[rank] for rank in sorted(found)]


def _as_rank(look: Callable[..., Seen], words: tuple[object, ...], device: str) -> Seen:
    torch.set_num_threads(1)
    if device == "cpu":
        join_process_group(torch.device("cpu"), round_store(connect_from_environment(), 0))
    else:  # NCCL takes no two ranks on one GPU
        torch.cuda.set_device(device)
        distributed.init_process_group("cpu:gloo,cuda:gloo", timeout=timedelta(seconds=100))
    return look(*words)


def _as_spawned(look: Callable[..., Seen], words: tuple[object, ...], device: str) -> Seen:
    """Nothing is as the parent has set it."""
    from tests.gpu.shared_device import shared_device

    atexit.register(os._exit, 0)  # before torch's own threads can abort the end of the interpreter
    warnings.simplefilter("ignore")
    plans = [word for word in words if isinstance(word, Plan)]
    with deterministic_kernels(any(plan.training.deterministic for plan in plans)), shared_device():
        return _as_rank(look, words, device)


@contextmanager
def kept_engine(plan: Plan, device: str = "cpu") -> Iterator[Engine]:
    """In a rank it is never freed, as in a run: tearing a process group down may hang."""
    with default_dtype(plan):
        engine = Engine(plan, torch.device(device))
        if not plan.layout.is_one_process:
            _ALIVE.append(engine)
        yield engine


def forked(num_ranks: int, look: Callable[..., Any], *words: object) -> list[Any]:
    """`look(rank, *words)` on ranks with a gloo group of their own (one has none): tensors, and what holds tensors.
    They are forked by a server without threads: a fork of a process with threads may wait for ever for their locks."""
    with TemporaryDirectory() as folder:
        ranks = [
            server().Process(target=_as_forked, args=(rank, num_ranks, Path(folder), dict(os.environ), look, words))
            for rank in range(num_ranks)
        ]
        try:
            for process in ranks:
                process.start()
            for process in ranks:
                process.join(90)
            assert [process.exitcode for process in ranks] == [0] * num_ranks
        finally:
            for process in ranks:
                process.kill()
        return [torch.load(Path(folder, f"{rank}.pt")) for rank in range(num_ranks)]


def _as_forked(
    rank: int,
    num_ranks: int,
    folder: Path,
    environment: dict[str, str],
    look: Callable[..., Any],
    words: tuple[object, ...],
) -> None:
    """It leaves without tearing anything down."""
    torch.set_num_threads(1)
    os.environ |= environment
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        if num_ranks > 1:
            store = distributed.FileStore(str(folder / "store"), num_ranks)
            limit = timedelta(seconds=60)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks, timeout=limit)
        torch.save(look(rank, *words), folder / f"{rank}.pt")
        if num_ranks > 1:
            distributed.barrier()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
