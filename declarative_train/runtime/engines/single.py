"""One process, one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from declarative_train.data.batch import Batch
from declarative_train.graph.direct import direct
from declarative_train.runtime.collectives import Alone
from declarative_train.runtime.engines.engine import Engine, StepResult
from declarative_train.runtime.model import build_model, prepare_units, set_training
from declarative_train.runtime.optimizers import build_optimizers
from declarative_train.runtime.update import Update, local_norm
from declarative_train.runtime.worker import Lane, Worker

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


class SingleEngine(Engine):
    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.device = device
        self.ranks = Alone()
        self.dp_rank = 0
        self.model = build_model(plan, device)
        self._worker = Worker(plan, self.model, device, self.ranks, Lane())
        self.objective = self._worker.objective
        self.metrics = self._worker.metrics
        self.loss_scale = self._worker.loss_scale
        prepare_units(self.model, plan.layout, plan.training, self._worker.groups)
        self._call = direct(self.model)
        self.optimizer = build_optimizers(plan.parameters, plan.training.optimizer, dict(self.model.named_parameters()))
        self._update = Update(self.optimizer, plan.training, self.loss_scale, local_norm)
        set_training(self.model, True)

    def step(
        self, step: int, batches: Sequence[Batch], *, num_rows: int, lr_factor: float, measure: bool
    ) -> StepResult:
        worker = self._worker
        chunks = worker.chunks(batches)
        factors, counts = worker.factors(chunks, num_rows)
        self.optimizer.zero_grad()
        call = self._call
        sums = [worker.run(step, position, chunk, factors, call) for position, chunk in enumerate(chunks)]
        norm, finite = self._update(lr_factor, measure)
        worker.finish(finite)
        return StepResult(sums, counts, norm, finite)

    def set_training(self, training: bool) -> None:
        set_training(self.model, training)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        return self._worker.evaluate(batch, self.model)

    def synchronize_buffers(self) -> None:
        """One copy of each buffer: nothing to do."""
