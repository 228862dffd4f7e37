"""Engine of one rank: its part of the model, its optimizer, and the optimizer step, which is the same in every mode.

`engine/axes` has one file per axis of the plan's mesh. The model is run by one of two drivers: DirectDriver calls it,
PipelineDriver passes microbatches through pipeline stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from declarative_train.components.layers.sample_groups import make_process_groups
from declarative_train.data.batch import Batch
from declarative_train.engine.axes import make_gradient_sync
from declarative_train.engine.collectives import MeshPosition, average_buffers, make_group
from declarative_train.engine.observer import UNOBSERVED
from declarative_train.engine.step.ema import Average, forget_gathered
from declarative_train.engine.step.model_preparation import fill, freeze, prepare_units, set_training, whole_model
from declarative_train.engine.step.objective import as_run
from declarative_train.engine.step.optimizers import build_optimizers
from declarative_train.engine.step.precision import compute_dtype, parameters_in
from declarative_train.engine.step.step_runner import RankContext, StepRunner, Sums, group_spans
from declarative_train.engine.step.update import Update

if TYPE_CHECKING:
    from declarative_train.data.spec import BatchSpec
    from declarative_train.engine.axes.gradient_sync import GradientSync
    from declarative_train.engine.observer import StepObserver
    from declarative_train.engine.step.forward_path import Chunk
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.plan.plan import Plan


@dataclass(slots=True)
class StepResult:
    """Result of a step. Its tensors are on the device; the loop reads them only at logging steps, so that other steps
    do not wait.

    sums       for each chunk, this rank's sum of each of the L loss terms (L,); [] on a rank without the loss
    counts     the divisor of each term over the global batch: L numbers, or a float64 tensor (L,)
    grad_norm  norm of the gradients of the whole model before clipping; None if not requested
    finite     whether all gradients are finite, a bool tensor, the same on all ranks; None if this was not checked"""

    sums: Sums
    counts: Sequence[float] | torch.Tensor
    grad_norm: torch.Tensor | None = None
    finite: torch.Tensor | None = None


class Driver(Protocol):
    """Interface for running the model on this rank. `buffers`: receive buffers that are kept between steps."""

    @property
    def buffers(self) -> Sequence[torch.Tensor]: ...

    def run(self, step: int, chunks: Sequence[Chunk], factors: Sequence[torch.Tensor]) -> Sums:
        """Run forward and backward of the chunks of step number `step`, and accumulate gradients: those of the L loss
        terms, each multiplied by its factor in `factors`. Return the sums (L,) of the terms for each chunk."""

    def evaluate(self, batch: Batch) -> dict[str, torch.Tensor] | None:
        """Run the forward of a batch without gradients. Return all values that losses and metrics read, by name; None
        on a rank without outputs of the model."""


class DirectDriver:
    """Driver that calls the model for each chunk."""

    buffers: Sequence[torch.Tensor] = ()

    def __init__(self, runner: StepRunner, model: nn.Module, sharing: GradientSync) -> None:
        self._runner = runner
        self._model = model
        self._sharing = sharing

    def run(self, step: int, chunks: Sequence[Chunk], factors: Sequence[torch.Tensor]) -> Sums:
        runner, sharing = self._runner, self._sharing
        begin, end, call, last = sharing.begin, sharing.end, sharing.call, len(chunks) - 1
        sums = []
        for position, chunk in enumerate(chunks):
            begin(chunk.num_rows if chunk.row_weight is not None else None, position == last)
            sums.append(runner.run(step, position, chunk, factors, call))
            end()
        return sums

    def evaluate(self, batch: Batch) -> dict[str, torch.Tensor]:
        return self._runner.evaluate(batch, self._model)


class Engine:
    """Model, optimizer and process groups of one rank.

    plan           the plan with the graph that is run (`as_run`)
    model          this rank's part of the model, with parameters under the plan's names
    ranks          all ranks, over which the loop sums its losses
    dp_rank        data-parallel index of this rank: which rows of a global batch it reads
    metrics        training metrics, over the rows of all steps since they were last read
    loss_scale     the loss scale for fp16; None for other precisions
    average        the moving average of the parameters; None if the plan has none
    is_replicated  whether every rank has the whole model and the whole optimizer state"""

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        place: MeshPosition | None = None,
        fill: Callable[[BuiltModel, Plan, torch.device], None] = fill,
    ) -> None:
        # A traced step passes `place`, and a `fill` that writes no start values.
        # Order: the place on the mesh and the modules, which nodes that mix samples need; then the units, which are
        # compiled and checkpointed one by one, as they are sharded; the start values, before replicas are made but
        # after sharding, as no rank holds a sharded model whole; the optimizer last, as it takes the final tensors.
        self.plan = plan = as_run(plan)
        layout = plan.layout
        place = place or MeshPosition(layout, device)
        if layout.pipeline is None:
            held = whole_model(plan)
        else:
            from declarative_train.engine.axes import pipeline

            held = pipeline.build_rank_model(plan, place.world.rank)
        if layout.cuts is not None and layout.has("expert"):
            from declarative_train.engine.axes.expert import divide_experts

            divide_experts(held, layout.cuts, place)
        if layout.cuts is not None and layout.has("tensor"):
            from declarative_train.engine.axes import tensor

            tensor.divide(held, layout.cuts, place)
        freeze(held.model, plan.parameters)
        runner = StepRunner(plan, held.model, device, place.data, _context(plan, held, place, device))
        if layout.context is not None:
            from declarative_train.engine.axes import context

            runner.forward_path.positions = context.ranks_of(layout.context, place)
            context.divide_positions(held, runner.forward_path.positions)
        if layout.cuts is not None and layout.has("tensor"):
            tensor.divide_losses(runner.objective, layout.cuts, place)
        if plan.training.compile and device.type == "cuda":
            from declarative_train.engine.step.compiled import compile_losses

            compile_losses(runner.objective.modules)
        if not layout.scatters:  # which has several models, and prepares each
            prepare_units(held.model, plan, runner.groups)
        stages = [] if layout.pipeline is None else pipeline.bind_stages(plan, held, runner)
        if not layout.is_sharded:
            fill(held, plan, device)
        sharing = make_gradient_sync(plan, held, place, runner)
        if layout.is_sharded:
            fill(held, plan, device)
        self.device = device
        self.world, self.ranks, self.dp_rank = place.world, place.sums, place.dp_rank
        self.model = held.model
        self.is_replicated = sharing.is_replicated
        self.objective, self.metrics, self.loss_scale = runner.objective, runner.metrics, runner.loss_scale
        self.optimizer = build_optimizers(
            plan.parameters,
            plan.training.optimizer,
            {name: item for name, item in held.model.named_parameters() if item.requires_grad},
        )
        averages = plan.training.ema_decay is not None
        self.average = Average(self.optimizer.parameters, held.model) if averages else None
        self._runner, self._held, self.place, self._sharing = runner, held, place, sharing
        self._update = Update(self.optimizer, plan.training, self.loss_scale, self._global_norm)
        self._in_compute_dtype = parameters_in(compute_dtype(plan.training), held.modules, sharded=layout.is_sharded)
        self._driver: Driver = DirectDriver(runner, held.model, sharing)
        if layout.pipeline is not None:
            self._driver = pipeline.PipelineDriver(plan, runner, held, place, stages)
        self.set_training(True)

    def step(
        self,
        step: int,
        batches: Sequence[Batch],
        *,
        num_rows: int,
        lr_factor: float,
        measure: bool,
        observer: StepObserver = UNOBSERVED,
    ) -> StepResult:
        """Run one optimizer step: forward and backward of this rank's rows of a global batch, clipping, update.
        `batches`: one for each accumulation step. `num_rows`: real rows of the global batch. `lr_factor`: factor of the
        lr schedule. `measure`: whether to compute the gradient norm."""
        runner, sharing = self._runner, self._sharing
        self.switch_weights(trains=True)
        runner.observer = observer
        chunks = runner.chunks(batches)
        factors, counts = runner.factors(chunks, num_rows)
        self.optimizer.zero_grad()
        observer.enter("casts")
        with self._in_compute_dtype:
            observer.enter("forward")
            sums = self._driver.run(step, chunks, factors)
        sharing.reduce(self.optimizer)
        observer.enter("update")
        norm, finite = self._update(lr_factor, measure)
        observer.enter("end")
        if self.average is not None:
            self.average.update(self.plan.training.ema_decay_at(step), finite)
        sharing.finish(finite)
        return StepResult(sums, counts, norm, finite)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """Modules with parameters on this rank: the model, the stages of a pipeline, or in `dp` every replica."""
        return self._held.modules

    @property
    def receiving(self) -> Sequence[torch.Tensor]:
        """Receive buffers of a pipeline, which are kept between steps."""
        return self._driver.buffers

    def set_training(self, training: bool) -> None:
        """Switch between training and evaluation. Before an evaluation, running statistics are averaged over the
        ranks."""
        if not training:
            self.synchronize_buffers()
        for module in self.modules:
            set_training(module, training)

    def switch_weights(self, *, trains: bool) -> None:
        """Put the weights of training into the parameters (`trains`), or those of evaluations and checkpoints if the
        optimizer keeps an average. The next step returns to the weights of training."""
        if self.optimizer.switch(trains=trains):
            forget_gathered(self.model)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor] | None:
        """Run the model on a batch for an evaluation, without gradients or updates of statistics. Return all values
        that losses and metrics read, by name; None on a rank without outputs of the model (an inner pipeline stage).
        All ranks must call this equally often."""
        with torch.no_grad(), self._in_compute_dtype:
            return self._driver.evaluate(batch)

    def synchronize_buffers(self) -> None:
        """Average running statistics over the ranks, and choose the weights of evaluations. Call it before saving."""
        self.switch_weights(trains=False)
        if self.place.data.size > 1:
            average_buffers(self.model, self.place.data)

    def _global_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of the gradients of all pipeline stages together. A parameter with copies on several stages
        counts once."""
        own = self._sharing.norm(gradients)
        if self.place.pipeline is None:
            return own
        squared = self.place.pipeline.sum(own.to(self.device, torch.float64).square())
        return squared.sqrt().to(own.dtype)


def _context(plan: Plan, held: BuiltModel, place: MeshPosition, device: torch.device) -> RankContext:
    """Return this rank's RankContext. Its process groups are for the nodes that mix samples, including nodes of other
    stages: all ranks of a group must create it together, so every rank creates all groups."""
    if plan.layout.is_one_process:
        return RankContext()
    groups = make_process_groups(group_spans(plan, held.whole, device), place.data_ranks, make_group)
    key = (place.dp_rank, place.pipeline_index)
    if place.context is None:
        return RankContext(place.data.size, key, groups)
    return RankContext(place.data.size, (*key, place.context.rank), groups, place.items)


def get_process_batch(plan: Plan) -> BatchSpec:
    """Return the batch sizes for the data reader of this process. In `dp` one process reads the rows of all model
    copies."""
    batch = plan.batch
    if len(plan.layout.ranks) > 1:
        return batch
    return replace(batch, data_parallel_size=1, microbatch_size=batch.microbatch_size * batch.data_parallel_size)
