"""Engine of one rank: its part of the model, its optimizer, and the optimizer step, which is the same in every mode of
parallelism.

`engine/axes` has one file per axis of the plan's mesh. One of two drivers runs the model: DirectDriver calls it,
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
from declarative_train.engine.step.step_runner import RankContext, StepRunner, Sums, find_group_spans
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
    """Result of an optimizer step. Its tensors stay on the device until a logging step, so that other steps do not
    wait.

    `sums`       for each chunk (rows of one forward), this rank's sums of the L loss terms; [] if it has no loss
    `counts`     (L,) number of valid items of each term in the global batch, by which its sum is divided
    `grad_norm`  norm of the gradients of the whole model before clipping; None if not computed
    `finite`     bool tensor, true if all gradients are finite, equal on all ranks; None if not checked"""

    sums: Sums
    counts: Sequence[float] | torch.Tensor
    grad_norm: torch.Tensor | None = None
    finite: torch.Tensor | None = None


class Driver(Protocol):
    """Interface of objects that run the model on this rank. `buffers`: tensors that receive data from other ranks; they
    keep their memory between steps."""

    @property
    def buffers(self) -> Sequence[torch.Tensor]: ...

    def run(self, step: int, chunks: Sequence[Chunk], factors: Sequence[torch.Tensor]) -> Sums:
        """Run forward and backward of each chunk (the rows of one forward) in step number `step`. Gradients accumulate
        in the parameters. Return for each chunk the sums of the L loss terms, without the factors. `factors`: the
        number by which each term is multiplied before the backward."""

    def evaluate(self, batch: Batch) -> dict[str, torch.Tensor] | None:
        """Run the forward of a batch without gradients. Return all values that losses and metrics read, by name; None
        on a rank that does not compute the model's outputs."""


class DirectDriver:
    """Driver that calls the model for each chunk (the rows of one forward), without a pipeline."""

    buffers: Sequence[torch.Tensor] = ()

    def __init__(self, runner: StepRunner, model: nn.Module, sync: GradientSync) -> None:
        self._runner = runner
        self._model = model
        self._sync = sync

    def run(self, step: int, chunks: Sequence[Chunk], factors: Sequence[torch.Tensor]) -> Sums:
        runner, sync = self._runner, self._sync
        begin, end, call, last = sync.begin, sync.end, sync.call, len(chunks) - 1
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

    `plan`           the plan, with the graph that ranks run (`as_run`)
    `model`          this rank's part of the model, with parameters under the plan's names
    `world`          all ranks
    `ranks`          the ranks over which the training loop sums losses
    `dp_rank`        data-parallel index of this rank, which decides the rows that it reads
    `metrics`        training metrics, over the rows of all steps since they were last read
    `loss_scale`     loss scale for fp16; None for other precisions
    `average`        moving average of the parameters, or None
    `is_replicated`  every rank has the whole model and the whole optimizer state
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        position: MeshPosition | None = None,
        fill: Callable[[BuiltModel, Plan, torch.device], None] = fill,
    ) -> None:
        # A traced step passes `position`, and a `fill` that writes no initial values. The order matters:
        # - layers that mix samples need the position on the mesh
        # - units are compiled and checkpointed before they are sharded
        # - initial values are written before replicas are made, but after sharding: no rank has a sharded model whole
        # - the optimizer is last, because it needs the final tensors
        self.plan = plan = as_run(plan)
        layout = plan.layout
        position = position or MeshPosition(layout, device)
        if layout.pipeline is None:
            built = whole_model(plan)
        else:
            from declarative_train.engine.axes import pipeline

            built = pipeline.build_rank_model(plan, position.world.rank)
        if layout.cuts is not None and layout.has("expert"):
            from declarative_train.engine.axes.expert import divide_experts

            divide_experts(built, layout.cuts, position)
        if layout.cuts is not None and layout.has("tensor"):
            from declarative_train.engine.axes import tensor

            tensor.divide(built, layout.cuts, position)
        freeze(built.model, plan.parameters)
        runner = StepRunner(plan, built.model, device, position.data, _make_context(plan, built, position, device))
        if layout.context is not None:
            from declarative_train.engine.axes import context

            runner.forward_path.positions = context.ranks_of(layout.context, position)
            context.divide_positions(built, runner.forward_path.positions)
        if layout.cuts is not None and layout.has("tensor"):
            tensor.divide_losses(runner.objective, layout.cuts, position)
        if plan.training.compile and device.type == "cuda":
            from declarative_train.engine.step.compiled import compile_losses

            compile_losses(runner.objective.modules)
        if not layout.scatters:  # otherwise each replica is prepared
            prepare_units(built.model, plan, runner.groups)
        stages = [] if layout.pipeline is None else pipeline.bind_stages(plan, built, runner)
        if not layout.is_sharded:
            fill(built, plan, device)
        sync = make_gradient_sync(plan, built, position, runner)
        if layout.is_sharded:
            fill(built, plan, device)
        self.device = device
        self.world, self.ranks, self.dp_rank = position.world, position.sums, position.dp_rank
        self.model = built.model
        self.is_replicated = sync.is_replicated
        self.objective, self.metrics, self.loss_scale = runner.objective, runner.metrics, runner.loss_scale
        self.optimizer = build_optimizers(
            plan.parameters,
            plan.training.optimizer,
            {name: item for name, item in built.model.named_parameters() if item.requires_grad},
        )
        averages = plan.training.ema_decay is not None
        self.average = Average(self.optimizer.parameters, built.model) if averages else None
        self._runner, self._built, self.position, self._sync = runner, built, position, sync
        self._update = Update(self.optimizer, plan.training, self.loss_scale, self._global_norm)
        self._in_compute_dtype = parameters_in(compute_dtype(plan.training), built.modules, sharded=layout.is_sharded)
        self._driver: Driver = DirectDriver(runner, built.model, sync)
        if layout.pipeline is not None:
            self._driver = pipeline.PipelineDriver(plan, runner, built, position, stages)
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
        `batches`: one for each accumulation step. `num_rows`: number of rows of the global batch, without padding.
        `lr_factor`: factor of the lr schedule. `measure`: return the gradient norm even if the update does not need it.
        """
        runner, sync = self._runner, self._sync
        self.switch_weights(trains=True)
        runner.observer = observer
        chunks = runner.chunks(batches)
        factors, counts = runner.factors(chunks, num_rows)
        self.optimizer.zero_grad()
        observer.enter("casts")
        with self._in_compute_dtype:
            observer.enter("forward")
            sums = self._driver.run(step, chunks, factors)
        sync.reduce(self.optimizer)
        observer.enter("update")
        norm, finite = self._update(lr_factor, measure)
        observer.enter("end")
        if self.average is not None:
            self.average.update(self.plan.training.ema_decay_at(step), finite)
        sync.finish(finite)
        return StepResult(sums, counts, norm, finite)

    @property
    def modules(self) -> Sequence[nn.Module]:
        """Modules that have this rank's parameters: the model, with a pipeline also its stages, in mode `dp` all
        replicas."""
        return self._built.modules

    @property
    def receiving(self) -> Sequence[torch.Tensor]:
        """Tensors of a pipeline that receive data from other stages and are kept between steps; [] without a
        pipeline."""
        return self._driver.buffers

    def set_training(self, training: bool) -> None:
        """Switch the modules between training and evaluation mode; modules whose parameters are all frozen stay in
        evaluation mode. Switching to evaluation also calls `synchronize_buffers`."""
        if not training:
            self.synchronize_buffers()
        for module in self.modules:
            set_training(module, training)

    def switch_weights(self, *, trains: bool) -> None:
        """Switch the parameters between weights for training (`trains`) and weights for evaluations and checkpoints.
        They differ only if the optimizer keeps an average of the parameters (a schedule-free one). `step` switches back
        to training."""
        if self.optimizer.switch(trains=trains):
            forget_gathered(self.model)

    def forward(self, batch: Batch) -> dict[str, torch.Tensor] | None:
        """Run the model on a batch for an evaluation, without gradients and without updates of statistics. Return all
        values that losses and metrics read, by name; None on a pipeline stage other than the last. All ranks must call
        this the same number of times."""
        with torch.no_grad(), self._in_compute_dtype:
            return self._driver.evaluate(batch)

    def synchronize_buffers(self) -> None:
        """Prepare the model for an evaluation or a checkpoint. Average running statistics over the ranks. If the
        optimizer averages the weights, put the average into the parameters."""
        self.switch_weights(trains=False)
        if self.position.data.size > 1:
            average_buffers(self.model, self.position.data)

    def _global_norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of the given gradients together with those of all other pipeline stages. A parameter with
        copies on several stages counts once."""
        own = self._sync.norm(gradients)
        if self.position.pipeline is None:
            return own
        squared = self.position.pipeline.sum(own.to(self.device, torch.float64).square())
        return squared.sqrt().to(own.dtype)


def _make_context(plan: Plan, built: BuiltModel, position: MeshPosition, device: torch.device) -> RankContext:
    """Return this rank's RankContext, with process groups for layers that mix samples across ranks. Every rank creates
    the groups for the layers of all pipeline stages, because all ranks of a group must create it together."""
    if plan.layout.is_one_process:
        return RankContext()
    groups = make_process_groups(find_group_spans(plan, built.whole, device), position.data_ranks, make_group)
    key = (position.dp_rank, position.pipeline_index)
    if position.context is None:
        return RankContext(position.data.size, key, groups)
    return RankContext(position.data.size, (*key, position.context.rank), groups, position.items)


def get_process_batch(plan: Plan) -> BatchSpec:
    """Return the batch sizes with which this process reads data. They differ from the plan's only in mode `dp`, where
    one process reads the rows of all replicas."""
    batch = plan.batch
    if len(plan.layout.ranks) > 1:
        return batch
    return replace(batch, data_parallel_size=1, microbatch_size=batch.microbatch_size * batch.data_parallel_size)
