"""Parameters, gradients and optimizer state sharded over the ranks by torch's `fully_shard`, unit by unit.

With `replicate` the mesh has two axes: shards on neighbours, whole copies of the sharded model beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from declarative_train.components.layers.sample_groups import make_process_groups
from declarative_train.data.batch import Batch
from declarative_train.graph.build import build
from declarative_train.graph.initialise import initialise
from declarative_train.runtime.buffers import average_buffers
from declarative_train.runtime.collectives import Ranks
from declarative_train.runtime.engines.engine import Engine, StepResult
from declarative_train.runtime.model import freeze, prepare_units, set_training
from declarative_train.runtime.optimizers import build_optimizers
from declarative_train.runtime.sharding import shard, shard_root
from declarative_train.runtime.update import Update, sharded_norm
from declarative_train.runtime.weights import load_weights
from declarative_train.runtime.worker import Lane, Worker, group_spans

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


class FsdpEngine(Engine):
    """The model is never whole on a rank: it is built on the meta device, sharded, and each rank fills its part."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.device = device
        self.ranks = self._ranks = Ranks()
        self.dp_rank = distributed.get_rank()
        sizes, names = zip(*((axis.size, axis.name) for axis in plan.layout.mesh), strict=True)
        mesh = init_device_mesh(device.type, sizes, mesh_dim_names=names)
        ties = {item.name: item.tie for item in plan.parameters if item.tie is not None}
        self.model = build(plan.graph, plan.plugins, seed=plan.seed, device="meta", ties=ties)
        freeze(self.model, plan.parameters)
        spans = group_spans(plan, self.model, device)
        lane = Lane(self._ranks.size, (self.dp_rank, 0), make_process_groups(spans, range(self._ranks.size)))
        self._worker = Worker(plan, self.model, device, self.ranks, lane)
        self.objective = self._worker.objective
        self.metrics = self._worker.metrics
        self.loss_scale = self._worker.loss_scale
        prepare_units(self.model, plan.layout, plan.training, self._worker.groups)
        shard(self.model, plan.layout.units, mesh)
        self._root = shard_root(self.model, mesh)
        self.model.to_empty(device=device)
        initialise(self.model, plan.graph, plan.parameters, plan.seed, plan.plugins)
        load_weights(self.model, plan.weights)
        if plan.training.precision == "fp64":
            self.model.double()  # drawn in float32 in every mode
        self.optimizer = build_optimizers(plan.parameters, plan.training.optimizer, dict(self.model.named_parameters()))
        self._update = Update(self.optimizer, plan.training, self.loss_scale, sharded_norm)
        set_training(self.model, True)

    def step(
        self, step: int, batches: Sequence[Batch], *, num_rows: int, lr_factor: float, measure: bool
    ) -> StepResult:
        worker = self._worker
        chunks = worker.chunks(batches)
        factors, counts = worker.factors(chunks, num_rows)
        self.optimizer.zero_grad()
        sums, last = [], len(chunks) - 1
        for position, chunk in enumerate(chunks):
            if last:
                self._root.set_requires_gradient_sync(position == last)
            sums.append(worker.run(step, position, chunk, factors, self.model))
        norm, finite = self._update(lr_factor, measure)
        worker.finish(finite)
        return StepResult(sums, counts, norm, finite)

    def set_training(self, training: bool) -> None:
        if not training:
            self.synchronize_buffers()
        set_training(self.model, training)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        return self._worker.evaluate(batch, self.model)

    def synchronize_buffers(self) -> None:
        average_buffers(self.model, self._ranks)
