"""One process, several devices: the rows of a batch are scattered over replicas of the model, the outputs gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from declarative_train.components.layers.sample_groups import end_step
from declarative_train.data.batch import Batch
from declarative_train.runtime.collectives import Alone
from declarative_train.runtime.engines.engine import Engine, StepResult
from declarative_train.runtime.model import build_model, prepare_units, set_training
from declarative_train.runtime.optimizers import build_optimizers
from declarative_train.runtime.replicas import Replicas, taken_statistics
from declarative_train.runtime.update import Update, local_norm
from declarative_train.runtime.worker import Lane, Worker

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


class DpEngine(Engine):
    """The loss is computed once, on the gathered outputs; so nothing is averaged, and the scale is that of `single`."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        layout = plan.layout
        self.device = device
        self.ranks = Alone()
        self.dp_rank = 0
        self.model = build_model(plan, device)
        self._worker = Worker(plan, self.model, device, self.ranks, Lane())
        self._worker.groups.microbatch_size = plan.batch.microbatch_size * layout.num_replicas
        devices = [device] * layout.num_replicas
        if device.type == "cuda":
            devices = [torch.device("cuda", index) for index in layout.devices]
            self._worker.randomness.add(devices[1:])
        self._replicas = Replicas(self.model, devices, plan.batch.microbatch_size)
        self._take_statistics = taken_statistics(self._replicas.modules[1:], device)
        self.objective = self._worker.objective
        self.metrics = self._worker.metrics
        self.loss_scale = self._worker.loss_scale
        for module, groups in zip(self._replicas.modules, self._replicas.groups, strict=True):
            prepare_units(module, layout, plan.training, groups)
        self.optimizer = build_optimizers(plan.parameters, plan.training.optimizer, dict(self.model.named_parameters()))
        self._update = Update(self.optimizer, plan.training, self.loss_scale, local_norm)
        self.set_training(True)

    def step(
        self, step: int, batches: Sequence[Batch], *, num_rows: int, lr_factor: float, measure: bool
    ) -> StepResult:
        worker, replicas = self._worker, self._replicas
        chunks = worker.chunks(batches)
        factors, counts = worker.factors(chunks, num_rows)
        self.optimizer.zero_grad()
        sums = []
        for position, chunk in enumerate(chunks):
            replicas.begin(chunk.num_rows if chunk.row_weight is not None else None)
            sums.append(worker.run(step, position, chunk, factors, replicas))
            replicas.end()
        norm, finite = self._update(lr_factor, measure)
        statistics = self._take_statistics()
        if statistics is not None:
            end_step(self.model, statistics, finite)
        else:
            worker.finish(finite)
        return StepResult(sums, counts, norm, finite)

    def set_training(self, training: bool) -> None:
        for module in self._replicas.modules:
            set_training(module, training)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        """On the first replica alone: it holds the running statistics."""
        return self._worker.evaluate(batch, self.model)

    def synchronize_buffers(self) -> None:
        """The first replica's buffers are the model's."""
