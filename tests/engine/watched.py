"""Steps on real ranks, watched by dispatch: bytes of live storages at the peak, and what collectives and messages
carry.

    found = watch(plan, num_steps=2)          one entry per rank, of the last step
    found[0].peak_bytes, found[0].sent        {"stage to stage": 65536, ...}

A dispatch mode sees all of it, since gloo sends a batch of messages one by one. What is told of a collective is what a
ring sends: of n ranks each sends (n - 1) / n of what is gathered or scattered, and twice that of what is reduced.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import get_process_batch
from declarative_train.plan.plan import Plan
from tests.engine.on_ranks import kept_engine, on_ranks

RINGS = {  # by the name of an operation: what it is called here, and the part of its largest tensor that a ring sends
    "_allgather_base_": ("gathered", 1),
    "allgather_": ("gathered", 1),
    "_reduce_scatter_base_": ("scattered", 1),
    "reduce_scatter_": ("scattered", 1),
    "allreduce_": ("reduced", 2),
    "alltoall_base_": ("exchanged", 1),
}


@dataclass(slots=True)
class Watched:
    """Of one rank. `sent` and `calls` by kind (gathered, scattered, reduced, messages), bytes and numbers; `dtypes` of
    what travels as large as a parameter."""

    base_bytes: int = 0
    peak_bytes: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    dtypes: dict[str, set[str]] = field(default_factory=dict)

    @property
    def total_sent(self) -> int:
        return sum(self.sent.values())

    def note(self, kind: str, nbytes: float, dtype: torch.dtype) -> None:
        self.sent[kind] += round(nbytes)
        self.calls[kind] += 1
        self.dtypes.setdefault(kind, set()).add(str(dtype).removeprefix("torch."))


class Watch(TorchDispatchMode):
    """Every storage that an operation makes is counted as long as it lives; `into` takes peak and traffic."""

    def __init__(self, into: Watched) -> None:
        super().__init__()
        self.into = into
        self._live: dict[int, weakref.ref[Any]] = {}

    def add(self, tensor: torch.Tensor) -> None:
        local = tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor
        if local.device.type == "meta":
            return
        storage = local.untyped_storage()
        key = storage._cdata
        if key not in self._live:
            self._live[key] = weakref.ref(storage, lambda _: self._live.pop(key, None))

    def live_bytes(self) -> int:
        """Of all storages now; one that was let go in place (as fsdp does) counts what it has left."""
        return sum(storage.nbytes() for found in list(self._live.values()) if (storage := found()) is not None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.name().partition(".")[0]
        if name.startswith("c10d::"):
            self._collective(name.removeprefix("c10d::"), args)
        for item in tree_flatten(out)[0]:
            if isinstance(item, torch.Tensor):
                self.add(item)
        self.into.peak_bytes = max(self.into.peak_bytes, self.live_bytes())
        return out

    def _collective(self, operation: str, args: Any) -> None:
        if operation == "send":
            (tensor,) = args[0]
            self.into.note("messages", tensor.nbytes, tensor.dtype)
        if operation not in RINGS:
            return
        flat = tree_flatten(args)[0]
        tensors = [item for item in flat if isinstance(item, torch.Tensor)]
        group = next(item for item in map(_group_of, flat) if item is not None)
        size = distributed.get_world_size(group)
        kind, times = RINGS[operation]
        largest = max(tensors, key=lambda tensor: tensor.nbytes)
        whole = largest.nbytes
        if operation == "allgather_":  # a list of parts
            whole = sum(tensor.nbytes for tensor in tree_flatten(args[0])[0])
        self.into.note(kind, times * whole * (size - 1) / size, largest.dtype)


def _group_of(item: Any) -> Any:
    if isinstance(item, torch.ScriptObject):
        return distributed.ProcessGroup.unbox(item)
    return item if isinstance(item, distributed.ProcessGroup) else None


def watch(plan: Plan, *, num_steps: int = 2) -> list[Watched]:
    """The last of the plan's first steps, on real ranks over gloo. By then the optimizer has its state."""
    return on_ranks(plan, _watched, plan, num_steps)


def _watched(plan: Plan, num_steps: int) -> Watched:
    with kept_engine(plan) as engine:
        batches = TrainingBatches(plan.data, get_process_batch(plan), engine.dp_rank, open_sets(plan.data))
        found = Watched()
        looking = Watch(found)
        for tensor in (*engine.model.parameters(), *engine.model.buffers()):
            looking.add(tensor.detach())
        base = looking.live_bytes()
        for step in range(1, num_steps + 1):
            looking.into = found = Watched(base, looking.live_bytes())
            with looking:
                num_rows = plan.batch.global_batch_size
                engine.step(step, batches.step(step), num_rows=num_rows, lr_factor=1.0, measure=False)
    return found
