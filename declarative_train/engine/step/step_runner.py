"""Forward and backward of one chunk (the rows of one forward) on one rank, the same in every mode of parallelism."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from declarative_train.components.component import Collective
from declarative_train.components.layers.sample_groups import SampleGroups, attach, end_step, rank_spans
from declarative_train.data.batch import Batch
from declarative_train.engine.devices import exact_device
from declarative_train.engine.observer import UNOBSERVED, StepObserver
from declarative_train.engine.step.forward_path import Chunk, ForwardPath
from declarative_train.engine.step.metrics import Metrics
from declarative_train.engine.step.objective import Objective
from declarative_train.engine.step.randomness import Randomness, draws
from declarative_train.engine.step.scale import LossScale, Scale

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from declarative_train.plan.plan import MetricPlan, Plan, TermPlan

Call = Callable[..., tuple[torch.Tensor, ...]]
Sums = Sequence[tuple[torch.Tensor, ...]]


class StepRunner:
    """Runner of forward and backward of a chunk (the rows of one forward) on this rank. It has what all modes of
    parallelism need: preparation of batches, losses, training metrics, loss scales and random numbers."""

    def __init__(
        self, plan: Plan, model: nn.Module, device: torch.device, ranks: Collective, context: RankContext
    ) -> None:
        self.device = device
        self.forward_path = ForwardPath(plan, device)
        exact = exact_device(device)
        self._exact_device = None if exact == device else exact
        self.objective = Objective(plan, exact)
        self.metrics = Metrics(plan, exact, training=True)
        self._read = frozenset(_find_read_names(plan))
        self._counting = context.counting or ranks
        precision = plan.training.precision
        dtype = torch.float64 if precision == "fp64" else torch.float32
        self.scale = Scale(self.objective, context.dp_size, self._counting, exact, dtype)
        self.loss_scale = LossScale(device) if precision == "fp16" else None
        self.randomness = Randomness(plan.seed, context.key, device, needed=draws(plan.graph, plan.plugins))
        self.groups = SampleGroups(plan.batch.microbatch_size, context.process_groups, ranks)
        self.observer: StepObserver = UNOBSERVED
        self._model = model
        for module in (model, self.objective.modules):
            attach(module, self.groups)
        self._end_step = any(hasattr(module, "take_pending") for module in model.modules())

    def chunks(self, batches: Sequence[Batch]) -> list[Chunk]:
        return [self.forward_path.chunk(batch) for batch in batches]

    def factors(
        self, chunks: Sequence[Chunk], num_rows: int
    ) -> tuple[list[torch.Tensor], Sequence[float] | torch.Tensor]:
        """Return (factors, counts), one of each for every loss term. A factor is the gradient with which the term's
        backward starts; in fp16 it includes the loss scale. A count is the number of the term's valid items in the
        global batch. `chunks`: all rows of this rank in the step, one chunk for each forward. `num_rows`: number of
        rows of the global batch, without padding."""
        if self._exact_device is not None and self.objective.items_per_row is None:
            chunks = [self._chunk_to_exact_device(chunk) for chunk in chunks]
        factors, counts = self.scale.of(chunks, num_rows)
        if self.loss_scale is not None:
            factors = [factor * self.loss_scale.factor for factor in factors]
        return factors, counts

    def run(
        self, step: int, position: int, chunk: Chunk, factors: Sequence[torch.Tensor], call: Call
    ) -> tuple[torch.Tensor, ...]:
        """Run forward and backward of one chunk (the rows of one forward), update the training metrics, and return the
        detached sums of the loss terms. `position`: index of the chunk in the step. `factors`: factor of each loss
        term. `call`: function that runs the model."""
        self.randomness.begin(step, position)
        self.groups.begin(chunk.num_rows if chunk.row_weight is not None else None)
        self.observer.enter("chunk")
        values = self._to_exact_device(self.forward_path.values(chunk, call))
        row_weight = chunk.row_weight
        if self._exact_device is not None and row_weight is not None:
            row_weight = row_weight.to(self._exact_device)
        sums = self.sums(values, row_weight)
        backward(sums, factors)
        self.groups.end()
        if self.metrics:
            self.metrics.update({name: value.detach() for name, value in values.items()}, row_weight)
        return tuple(value.detach() for value in sums)

    def sums(self, values: Mapping[str, torch.Tensor], row_weight: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Return the sum of each loss term over a chunk (the rows of one forward), with an autograd graph. Also pass
        `values` and the sums to the step's observer. `values`: tensors that losses read, by name. `row_weight`: 0 for
        rows that are padding, otherwise 1; None if there is no padding."""
        self.observer.enter("loss", values.values())
        sums = self.objective.sums(values, row_weight)
        self.observer.enter("backward", sums)
        return sums

    def finish(self, finite: torch.Tensor | None) -> None:
        """Update running statistics (of batch norms) at the end of a step. `finite`: bool tensor, false if the
        optimizer skipped the step; None if it skips no steps."""
        if self._end_step:
            end_step(self._model, self._counting, finite)

    @torch.no_grad()
    def evaluate(self, batch: Batch, call: Call) -> dict[str, torch.Tensor]:
        return self._to_exact_device(self.forward_path.values(self.forward_path.chunk(batch), call))

    def _to_exact_device(self, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return those of `values` that losses and metrics read, moved to the device that computes losses and metrics
        (`exact_device`). If that is the device of the forward, return `values` unchanged."""
        if self._exact_device is None:
            return values
        return {name: value.to(self._exact_device) for name, value in values.items() if name in self._read}

    def _chunk_to_exact_device(self, chunk: Chunk) -> Chunk:
        row_weight = None if chunk.row_weight is None else chunk.row_weight.to(self._exact_device)
        return Chunk(self._to_exact_device(chunk.tensors), chunk.num_rows, row_weight)


def _find_read_names(plan: Plan) -> set[str]:
    """Return the names of all values that losses and metrics read."""
    judged: tuple[TermPlan | MetricPlan, ...] = (*plan.objective.terms, *plan.objective.metrics)
    return {name for each in judged for name in (each.input, each.target, each.mask) if name is not None}


class RankContext:
    """Facts about this rank that a step needs.

    `dp_size`         number of ranks whose gradients are averaged
    `key`             part of the seed of random numbers, different on ranks that must draw different numbers
    `process_groups`  groups of ranks across which layers mix samples, as a dict from number of ranks to group
    `counting`        ranks whose valid items are counted together; None: the data-parallel ranks
    """

    def __init__(
        self,
        dp_size: int = 1,
        key: tuple[int, ...] = (0, 0),
        process_groups: Mapping[int, ProcessGroup] | None = None,
        counting: Collective | None = None,
    ) -> None:
        self.dp_size = dp_size
        self.key = key
        self.process_groups = process_groups or {}
        self.counting = counting


def find_group_spans(plan: Plan, model: nn.Module, device: torch.device) -> tuple[int, ...]:
    """Return the sizes of the groups of ranks in which layers or losses mix samples, each size once: (4,) if batch
    norms compute their statistics over the samples of 4 ranks. `model`: the whole model."""
    return rank_spans(nn.ModuleList([model, Objective(plan, device).modules]), plan.batch.microbatch_size)


def backward(sums: Sequence[torch.Tensor], factors: Sequence[torch.Tensor]) -> None:
    """Run the backward of all loss terms that depend on a trained parameter. Gradients accumulate in the parameters.
    `sums`: sum of each term. `factors`: for each sum, the gradient with which its backward starts."""
    pairs = [(value, factor) for value, factor in zip(sums, factors, strict=True) if value.requires_grad]
    if pairs:
        values, grads = zip(*pairs, strict=True)
        torch.autograd.backward(values, grads)
