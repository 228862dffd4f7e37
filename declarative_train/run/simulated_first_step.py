"""Simulated first step in this process, one rank after the other: the rows of each data-parallel rank, its outputs,
loss and gradients, and the update that follows from all of them.

It uses the engine's code for the parts of a step, with the initial weights and the rows of the run. Only the batch is
smaller (a few rows per rank), and nothing is sent between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.collectives import Alone
from declarative_train.engine.step.model_preparation import build_with_start_values, freeze, set_training
from declarative_train.engine.step.objective import as_run
from declarative_train.engine.step.optimizers import build_optimizers
from declarative_train.engine.step.randomness import Randomness, draws
from declarative_train.engine.step.step_runner import RankContext, StepRunner
from declarative_train.engine.step.update import Update, compute_norm
from declarative_train.graph.partition import open_blocks, wire_name
from declarative_train.run.step_schedule import StepSchedule

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.plan.plan import Plan

ROWS = 2  # of each rank
MOST_PARAMETERS = 200_000_000  # the model, its gradients and the state of its optimizer are in memory

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class RankPart:
    """Results of one data-parallel rank in the step. B is its number of rows.

    samples    indices of its samples in the training set
    fields     values (B, ...) of its rows, by field
    values     values (B, ...) by name: outputs of the model, and values that a pipeline stage sends to the next
    returned   gradients of `values`, by name; some values have none
    loss       mean loss of its rows; in mode `dp`, what these rows add to the loss of the global batch
    gradients  gradients of the parameters that are shown, by name (`RankedStep.shown`)
    """

    samples: Sequence[int]
    fields: Tensors
    values: Tensors
    returned: Tensors
    loss: float
    gradients: Tensors


@dataclass(frozen=True)
class RankedStep:
    """First step of a plan, with `rows` rows for each data-parallel rank.

    parts          what each rank computed
    shown          names of the parameters whose gradients are shown
    loss           loss of the global batch
    norm           norm of all gradients, before clipping
    lr             learning rates of the step, as text
    gradients      gradients of the shown parameters, combined over all ranks and clipped as in the recipe
    before, after  values of the shown parameters before and after the update
    """

    rows: int
    parts: Sequence[RankPart]
    shown: Sequence[str]
    loss: float
    norm: float
    lr: str
    gradients: Tensors
    before: Tensors
    after: Tensors

    def combine(self, name: str, *, mean: bool) -> torch.Tensor:
        """Return the gradient of the parameter `name`, before clipping: the sum over the data-parallel ranks or, with
        `mean`, their mean. `name`: one of the names in `shown`."""
        parts = torch.stack([part.gradients[name] for part in self.parts])
        return parts.mean(0) if mean else parts.sum(0)


def compute_ranked_step(plan: Plan) -> RankedStep:
    """Return the first step of a plan, computed in float32 on the CPU with a few rows for each data-parallel rank.
    Raises RunFailure, DataError, SourceError, BadSampleError."""
    num_parts = plan.batch.data_parallel_size
    rows = max(1, min(ROWS, plan.batch.global_batch_size // num_parts))
    plan = as_run(_shrink(plan, rows))
    model = build_with_start_values(plan)
    freeze(model, plan.parameters)
    set_training(model, True)
    cpu, alone = torch.device("cpu"), Alone()
    runner = StepRunner(plan, model, cpu, alone, RankContext())
    optimizer = build_optimizers(
        plan.parameters,
        plan.training.optimizer,
        {name: item for name, item in model.named_parameters() if item.requires_grad},
    )
    batches = TrainingBatches(plan.data, plan.batch, 0, open_sets(plan.data)).step(1)
    chunks = runner.chunks(batches)
    due = StepSchedule(plan, 1).at(1)
    factors, _ = runner.factors(chunks, due.num_rows)
    shown = _choose_parameters(plan, optimizer.parameters)
    scale = 1 if plan.layout.scatters else num_parts  # gradients of ranks are averaged, those of replicas summed
    parts, sums = [], {name: torch.zeros_like(item) for name, item in optimizer.parameters.items()}
    for index, (batch, chunk) in enumerate(zip(batches, chunks, strict=True)):
        runner.randomness = Randomness(plan.seed, (index, 0), cpu, needed=draws(plan.graph, plan.plugins))
        call = _Call(model, tuple(plan.graph.outputs))
        optimizer.zero_grad()
        terms = runner.run(1, 0, chunk, factors, call)
        loss = sum(float(value) * float(factor) for value, factor in zip(terms, factors, strict=True))
        gradients = {}
        for name, item in optimizer.parameters.items():
            if item.grad is not None:
                sums[name] += item.grad
            if name in shown:
                gradients[name] = (torch.zeros_like(item) if item.grad is None else item.grad.clone()) * scale
        parts.append(_part(batch, chunk.tensors, call, loss * scale, gradients, scale))
    for name, item in optimizer.parameters.items():
        item.grad = sums[name]
    before = {name: optimizer.parameters[name].detach().clone() for name in shown}
    norm, _ = Update(optimizer, plan.training, None, compute_norm)(due.lr_factor, True)
    assert norm is not None
    after = {name: optimizer.parameters[name].detach() for name in shown}
    found = {name: sums[name] for name in shown}
    loss = sum(part.loss for part in parts) / scale
    lr = ", ".join(f"{name} {value:.3g}" for name, value in optimizer.lr().items())
    return RankedStep(rows, parts, shown, loss, float(norm), lr, found, before, after)


def _shrink(plan: Plan, rows: int) -> Plan:
    """Return the plan changed for one process, float32 and a small batch. Each data-parallel rank becomes one
    accumulation step of `rows` rows. With a pipeline, the values that stages send to each other become outputs of the
    graph, so that they can be shown."""
    num_parts = plan.batch.data_parallel_size
    batch = replace(
        plan.batch,
        global_batch_size=rows * num_parts,
        data_parallel_size=1,
        microbatch_size=rows,
        accumulation=num_parts,
        num_microbatches=1,
        pad_to_full=False,
    )
    training = replace(plan.training, precision="fp32", compile=False)
    graph, pipeline = plan.graph, plan.layout.pipeline
    if pipeline is not None:
        graph = open_blocks(graph, plan.layout.units)
        edges = [f"{node.name}:{output}" for node in graph.nodes for output in node.outputs]
        sent = {name for names in pipeline.wires for name in names}
        made = {wire_name(graph, edge): edge for edge in edges}
        graph = replace(graph, outputs=dict(graph.outputs) | {name: made[name] for name in sent if name in made})
    return replace(plan, batch=batch, training=training, graph=graph)


def _choose_parameters(plan: Plan, parameters: Mapping[str, nn.Parameter]) -> list[str]:
    """Return the names of the parameters to show. Without a pipeline, these are the first and the last of `parameters`;
    with a pipeline, the last one in each stage. `parameters`: the trained parameters by name."""
    pipeline = plan.layout.pipeline
    if pipeline is None:
        return list(dict.fromkeys((next(iter(parameters)), [*parameters][-1])))
    found = []
    for nodes in pipeline.stages:
        own = [name for name in parameters if any(name.startswith(f"{node}.") for node in nodes)]
        found += own[-1:]
    return found


class _Call:
    """Callable that runs the model, and keeps the outputs of the last call and their gradients."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        self._model, self._names = model, names
        self.outputs: Tensors = {}

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = self._model(*inputs)
        for each in found:
            if each.requires_grad:
                each.retain_grad()
        self.outputs = dict(zip(self._names, found, strict=True))
        return found


def _part(batch: Batch, fields: Tensors, call: _Call, loss: float, gradients: Tensors, scale: int) -> RankPart:
    returned = {name: each.grad * scale for name, each in call.outputs.items() if each.grad is not None}
    values = {name: each.detach() for name, each in call.outputs.items()}
    return RankPart(batch.sample_ids.tolist(), dict(fields), values, returned, loss, gradients)
