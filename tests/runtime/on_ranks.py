"""A function on the ranks of a plan: forked by torch's elastic launcher as a run's are, what each returns, in order.

def seen(plan):                             # in each rank, its process group joined
    with kept_engine(plan) as engine: ...
found = on_ranks(plan, seen, plan)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from torch import distributed

from declarative_train.plan.plan import Plan
from declarative_train.runtime.engine import Engine
from declarative_train.runtime.processes import (
    announce,
    join_process_group,
    launch_config,
    silence_loggers,
    wait_for_forks,
)
from declarative_train.runtime.rank import default_dtype

Seen = TypeVar("Seen")
_ALIVE: list[object] = []


def on_ranks(plan: Plan, look: Callable[..., Seen], *words: object, device: str = "cpu") -> list[Seen]:
    """`look(*words)` of each rank; without ranks, here. All ranks share a device that is not the CPU."""
    if plan.layout.is_one_process:
        return [look(*words)]
    torch.set_num_threads(1)
    import_module("torch._dynamo")  # before the fork, as the launcher does
    from torch.distributed.launcher.api import elastic_launch

    silence_loggers()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with TemporaryDirectory() as scratch:
        config = launch_config(len(plan.layout.ranks), Path(scratch), "fork")
        found = elastic_launch(config, _as_rank)(look, words, scratch, device)
    return [found[rank] for rank in sorted(found)]


def _as_rank(look: Callable[..., Seen], words: tuple[object, ...], scratch: str, device: str) -> Seen:
    torch.set_num_threads(1)
    announce(Path(scratch), int(os.environ["RANK"]))
    wait_for_forks(Path(scratch), int(os.environ["WORLD_SIZE"]))
    if device == "cpu":
        join_process_group(torch.device("cpu"))
    else:  # NCCL takes no two ranks on one GPU
        torch.cuda.set_device(device)
        distributed.init_process_group("cpu:gloo,cuda:gloo", timeout=timedelta(seconds=100))
    return look(*words)


@contextmanager
def kept_engine(plan: Plan, device: str = "cpu") -> Iterator[Engine]:
    """In a rank it is never freed, as in a run: tearing a process group down may hang."""
    with default_dtype(plan):
        engine = Engine(plan, torch.device(device))
        if not plan.layout.is_one_process:
            _ALIVE.append(engine)
        yield engine
