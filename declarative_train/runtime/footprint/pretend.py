"""One rank of a plan as it would be, alone in this process: on tensors without memory, in groups of ranks that answer
nothing. The engine is the one that runs (`runtime/engine.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.data.batch import Batch
from declarative_train.runtime.collectives import Place
from declarative_train.runtime.engine import Engine
from declarative_train.runtime.footprint import watched_step
from declarative_train.runtime.footprint.live_bytes import LiveBytes
from declarative_train.runtime.rank import default_dtype, slots_of
from declarative_train.runtime.step.model import allocate

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

_CPU = torch.device("cpu")
_SCALAR = torch.ops.aten._local_scalar_dense.default


class Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """No tensor has a value: where a step asks whether it was finite, it was."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _SCALAR and hasattr(args[0], "fake_mode"):
            return args[0].dtype == torch.bool or 1
        return func(*args, **(kwargs or {}))


def pretended_step(plan: Plan, rank: int, *, is_fake: bool = True) -> LiveBytes:
    """The count of a step of `rank`, with the optimizer's state there from its beginning."""
    plan = replace(plan, weights=())
    live = LiveBytes()
    with ExitStack() as stack:
        stack.enter_context(default_dtype(plan))
        if not plan.layout.is_one_process:
            stack.enter_context(_ranks(rank, len(plan.layout.ranks)))
        place = Place(plan.layout, _CPU)
        if is_fake:
            from torch._subclasses.fake_tensor import FakeTensorMode  # which imports torch._dynamo

            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            stack.enter_context(Answers())  # type: ignore[no-untyped-call]
        engine = Engine(plan, _CPU, place=place, fill=allocate)
        _begin_state(engine)
        batches = _batches(plan)
        watched_step.step(engine, live, 1, batches, num_rows=plan.batch.global_batch_size, lr_factor=1.0, measure=False)
    return live


def _begin_state(engine: Engine) -> None:
    """What the optimizer remembers, as after a first step."""
    for parameter in engine.optimizer.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    engine.optimizer.step()
    engine.optimizer.zero_grad()


def _batches(plan: Plan) -> list[Batch]:
    batch = slots_of(plan)
    rows = batch.microbatch_size
    fields = {field.name: field.tensor for field in plan.data.fields}
    return [
        Batch(
            {name: torch.zeros((rows, *spec.shape), dtype=getattr(torch, spec.dtype)) for name, spec in fields.items()},
            rows,
            None,
            np.arange(rows),
        )
        for _ in range(batch.accumulation * batch.num_microbatches)
    ]


@contextmanager
def _ranks(rank: int, number: int) -> Iterator[None]:
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=number)
    try:
        yield
    finally:
        distributed.destroy_process_group()
