"""Path of a batch on a rank: from the host to the device, through the nodes that use fields alone (`batch_graph`),
through the model, to the values that losses and metrics read."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from declarative_train.data.batch import Batch
from declarative_train.engine.step.precision import compute_dtype
from declarative_train.engine.step.randomness import draws
from declarative_train.graph.build import build
from declarative_train.graph.field_draws import FieldDraws

if TYPE_CHECKING:
    from declarative_train.components.layers.modules.context import ContextRanks
    from declarative_train.plan.plan import Plan


@dataclass(slots=True)
class Chunk:
    """Rows that one forward computes, on the model's device. `tensors`: by name, the fields of these rows, and values
    that are computed from fields alone. `num_rows`: number of rows without padding. `row_weight`: 0 for rows of
    padding, otherwise 1; None if there is no padding."""

    tensors: dict[str, torch.Tensor]
    num_rows: int
    row_weight: torch.Tensor | None


class ForwardPath:
    """Steps before and after the model in a forward on one rank: copying the batch to the device, selecting the inputs,
    and naming the outputs. The model itself is a function `call`, an argument of the methods. `positions`: the ranks of
    the axis `context`, which divide the positions of each row; None without this axis."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self._device = device
        self._moves, self._hastens = device.type != "cpu", device.type == "cuda"
        self._widens = plan.training.precision == "fp64"
        self._inputs = tuple(plan.graph.inputs)
        self._outputs = tuple(plan.graph.outputs)
        self._batch_inputs = tuple(plan.batch_graph.inputs)
        self._batch_outputs = tuple(plan.batch_graph.outputs)
        self._batch_module = None
        self._draws = FieldDraws(plan.seed) if draws(plan.batch_graph, plan.plugins) else None
        if plan.batch_graph.nodes:
            made = build(plan.batch_graph, plan.plugins, seed=plan.seed, field_draws=self._draws)
            self._batch_module = made.to(device).eval()
        self._compute_dtype = compute_dtype(plan.training)
        self._divided = () if plan.layout.context is None else plan.layout.context.names
        self.positions: ContextRanks | None = None

    def chunk(self, batch: Batch) -> Chunk:
        """Copy a batch to the device and compute the values that depend on fields alone. With the axis `context`, keep
        only the positions of this rank."""
        tensors, row_weight = dict(batch.tensors), batch.row_weight
        if self._moves:
            device, hastens = self._device, self._hastens
            tensors = {name: tensor.to(device, non_blocking=hastens) for name, tensor in tensors.items()}
            row_weight = None if row_weight is None else row_weight.to(device, non_blocking=hastens)
        if self._widens:
            tensors = {
                name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
            }
        if self._draws is not None:
            num_rows = len(next(iter(tensors.values())))
            self._draws.begin(batch.sample_ids, batch.epoch, num_rows, self._device)
        if self._batch_module is not None:
            with torch.no_grad():
                made = self._batch_module(*[tensors[name] for name in self._batch_inputs])
            tensors.update(zip(self._batch_outputs, made, strict=True))
        if self.positions is not None:
            tensors |= {name: self.positions.take(tensors[name]) for name in self._divided}
        return Chunk(tensors, batch.num_rows, row_weight)

    def inputs(self, chunk: Chunk) -> list[torch.Tensor]:
        """Return the values of a chunk (the rows of one forward) that are inputs of the model, in the order of the
        model's arguments."""
        tensors = chunk.tensors
        return [tensors[name] for name in self._inputs]

    def values(self, chunk: Chunk, call: Callable[..., tuple[torch.Tensor, ...]]) -> dict[str, torch.Tensor]:
        """Run the model on a chunk (the rows of one forward). Return its outputs together with the chunk's fields and
        computed values, in one dict by name. `call`: function that runs the model on its inputs."""
        if self._compute_dtype is None:
            outputs = call(*self.inputs(chunk))
        else:
            with self.autocast():
                outputs = call(*self.inputs(chunk))
        return self.by_name(chunk, outputs)

    def by_name(self, chunk: Chunk, outputs: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
        """Return the model's outputs together with the fields and computed values of a chunk (the rows of one forward),
        in one dict, by name."""
        values = dict(chunk.tensors)
        values.update(zip(self._outputs, outputs, strict=True))
        return values

    def autocast(self) -> AbstractContextManager[object]:
        """Return a context manager that switches torch's autocast on in bf16 and fp16 runs, and does nothing in
        others."""
        if self._compute_dtype is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._compute_dtype)
