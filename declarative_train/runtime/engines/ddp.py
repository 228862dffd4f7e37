"""One copy of the model per rank, gradients averaged by torch's DistributedDataParallel while backward goes on.

Of a model that fits in one of its buckets there is next to nothing to send meanwhile: these gradients are averaged
afterwards, in one message that takes the losses along.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from declarative_train.components.layers.sample_groups import make_process_groups
from declarative_train.data.batch import Batch
from declarative_train.graph.direct import direct
from declarative_train.runtime.buffers import average_buffers
from declarative_train.runtime.collectives import Ranks
from declarative_train.runtime.engines.engine import Engine, StepResult
from declarative_train.runtime.gradients import Sums, are_one_bucket, average_with_sums
from declarative_train.runtime.model import build_model, prepare_units, set_training
from declarative_train.runtime.optimizers import build_optimizers
from declarative_train.runtime.reach import without_gradient
from declarative_train.runtime.update import Update, local_norm
from declarative_train.runtime.worker import Lane, Worker, group_spans

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

# running statistics are averaged, not taken from rank 0 in every forward; the word changed in torch 2.13
_WORDS = signature(nn.parallel.DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _WORDS else "broadcast_buffers": False
}


class DdpEngine(Engine):
    is_replicated = True

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.device = device
        self.ranks = self._ranks = Ranks()
        self.dp_rank = distributed.get_rank()
        dp_size = distributed.get_world_size()
        self.model = build_model(plan, device)
        process_groups = make_process_groups(group_spans(plan, self.model, device), range(dp_size))
        lane = Lane(dp_size, (self.dp_rank, 0), process_groups)
        self._worker = Worker(plan, self.model, device, self.ranks, lane)
        self.objective = self._worker.objective
        self.metrics = self._worker.metrics
        self.loss_scale = self._worker.loss_scale
        idle = without_gradient(plan)
        for name, parameter in self.model.named_parameters():
            if name in idle:
                parameter.requires_grad_(False)  # the reducer would wait for its gradient for ever
        prepare_units(self.model, plan.layout, plan.training, self._worker.groups)
        named = {name: item for name, item in self.model.named_parameters() if item.requires_grad}
        self._call = direct(self.model)
        self._wrapped = None if are_one_bucket(named.values()) else wrapped(self.model, device)
        self.optimizer = build_optimizers(plan.parameters, plan.training.optimizer, named)
        self._update = Update(self.optimizer, plan.training, self.loss_scale, local_norm)
        set_training(self.model, True)

    def step(
        self, step: int, batches: Sequence[Batch], *, num_rows: int, lr_factor: float, measure: bool
    ) -> StepResult:
        worker, wrapped = self._worker, self._wrapped
        call = self._call if wrapped is None else wrapped
        chunks = worker.chunks(batches)
        factors, counts = worker.factors(chunks, num_rows)
        self.optimizer.zero_grad()
        sums: Sums = []
        last = len(chunks) - 1
        for position, chunk in enumerate(chunks):
            if wrapped is not None:
                wrapped.require_backward_grad_sync = position == last
            sums = [*sums, worker.run(step, position, chunk, factors, call)]
        if wrapped is None:
            sums = average_with_sums(self.optimizer.whole_gradients(), sums, self._ranks)
        norm, finite = self._update(lr_factor, measure)
        worker.finish(finite)
        return StepResult(sums, counts, norm, finite, is_added=wrapped is None)

    def set_training(self, training: bool) -> None:
        if not training:
            self.synchronize_buffers()
        set_training(self.model, training)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        return self._worker.evaluate(batch, self.model)

    def synchronize_buffers(self) -> None:
        average_buffers(self.model, self._ranks)


def wrapped(model: nn.Module, device: torch.device) -> nn.parallel.DistributedDataParallel:
    made = nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True, **NO_BUFFERS
    )
    settle_buckets(made)
    return made


def settle_buckets(wrapped: nn.parallel.DistributedDataParallel) -> None:
    """The reducer orders its buckets anew after its first backward, and where a number lies in a bucket decides in
    which order three ranks or more are added up. So one backward of zeros comes before the first step: all steps of a
    run then add in one order, and a resumed run does too. The last parameter is first, about as in a real backward."""
    model = wrapped.module
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forward, model.forward = model.forward, lambda zero: torch.stack([item.sum() for item in trained]).sum() * zero
    try:
        wrapped(torch.zeros((), device=trained[0].device)).backward()
    finally:
        model.forward = forward
    for parameter in trained:
        parameter.grad = None
