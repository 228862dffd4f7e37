"""Accumulators of plugins' metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from declarative_train.components.component import Collective, MetricInputs, MetricModule
from declarative_train.components.losses.modules.elementwise import upcast_half
from declarative_train.components.losses.modules.plugin import Forward, call_forward, make_samples
from declarative_train.components.metrics.modules.items import weights
from declarative_train.core.tensor_spec import TensorSpec


class PluginValues:
    """Function that computes a plugin's metric: (input, target, mask, row_weight) -> (values, weights), for
    `MeanOfItems`. The values (B, *S) are those that the user's method `forward` returns."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def __call__(
        self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        values = call_forward(self._forward, upcast_half(input), target).double()
        return values, weights(values.shape, None, mask, row_weight)


class OfAllRows(MetricModule):
    """Accumulator of a metric that the user's method `whole` computes from all rows. Padding and masked rows are
    excluded. Each rank stores its rows until the end of the evaluation; then they are gathered."""

    def __init__(self, whole: Forward, edges: MetricInputs, device: torch.device) -> None:
        self._whole, self._edges, self._device = whole, edges, device
        self.reset()

    def reset(self) -> None:
        self._kept: list[tuple[Tensor, Tensor | None]] = []

    def update(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> None:
        weight = weights(torch.Size([len(input)]), None, mask, row_weight)
        rows = slice(None) if weight is None else weight > 0
        with torch.no_grad():
            self._kept.append((upcast_half(input)[rows].clone(), None if target is None else target[rows].clone()))

    def compute(self, ranks: Collective) -> Tensor:
        inputs = ranks.concatenate(torch.cat([self._empty(self._edges.input), *(kept for kept, _ in self._kept)]))
        target = None
        if self._edges.target is not None:
            some = [kept for _, kept in self._kept if kept is not None]
            target = ranks.concatenate(torch.cat([self._empty(self._edges.target), *some]))
        if not len(inputs):
            return torch.full((), torch.nan, dtype=torch.float64, device=self._device)
        return one_number(self._whole, inputs, target).to(self._device)

    def _empty(self, spec: TensorSpec) -> Tensor:
        dtype = torch.float32 if spec.is_floating else getattr(torch, spec.dtype)
        return torch.empty((0, *spec.shape), dtype=dtype, device=self._device)


def one_number(whole: Forward, input: Tensor, target: Tensor | None) -> Tensor:
    """Call the user's method `whole`, and return its result as a float64 scalar. Raises ValueError if it is not one
    number."""
    with torch.no_grad():
        found = whole(input) if target is None else whole(input, target)
    value = torch.as_tensor(found, dtype=torch.float64)
    if value.ndim:
        raise ValueError(f"`whole` gives a tensor {tuple(value.shape)}; expected one number")
    return value


def number_of(whole: Forward, input: TensorSpec, target: TensorSpec | None) -> Tensor:
    """Return the result of the user's method `whole`, called on a few generated samples."""
    return one_number(whole, *make_samples(input, target))
