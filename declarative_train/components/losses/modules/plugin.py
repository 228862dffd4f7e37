"""Modules of plugins' losses, and trial calls of the user's code on generated samples.

B batch (rows, padding included), S the dimensions of an item within a row.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch
from torch import Tensor, nn

from declarative_train.components.component import LossModule
from declarative_train.components.losses.modules.elementwise import count_items, item_weight, upcast_half
from declarative_train.core.tensor_spec import TensorSpec

Forward = Callable[..., Tensor]

_ROWS, _FEWER = 6, 4
_TOLERANCE = 1e-4  # relative to the largest value: other numbers of rows are summed in another order


class OfPlugin(nn.Module, LossModule):
    """Loss of a plugin: the sum of the values (B, *shape) that the user's `forward` returns. Masked values do not
    count; they may be nan.
    """

    def __init__(self, forward: Forward, shape: tuple[int, ...], masked: bool) -> None:
        super().__init__()
        self._values = forward
        self.num_items = prod(shape)
        self.items_per_row = None if masked else float(self.num_items)

    def sum(self, input: Tensor, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None) -> Tensor:
        values = call_forward(self._values, upcast_half(input), target)
        weight = item_weight(mask, row_weight, values.ndim, values.dtype)
        return values.sum() if weight is None else torch.where(weight != 0, values * weight, 0).sum()

    def count(self, target: Tensor | None, mask: Tensor | None, row_weight: Tensor | None, rows: int) -> Tensor:
        return count_items(mask, row_weight, rows, self.num_items)


def call_forward(forward: Forward, input: Tensor, target: Tensor | None) -> Tensor:
    """Call the user's `forward`, and return its values. Raises ValueError if they are not a tensor with one row per
    sample."""
    values = forward(input) if target is None else forward(input, target)
    if not isinstance(values, Tensor) or not values.ndim or len(values) != len(input):
        found = f"a tensor {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise ValueError(f"`forward` gives {found}; expected a tensor with a row for each of the {len(input)} samples")
    return values


def try_forward(forward: Forward, input: TensorSpec, target: TensorSpec | None) -> Tensor:
    """Call the user's `forward` on a few generated samples, and return its values. `input`, `target`: specs of these
    samples."""
    with torch.no_grad():
        return call_forward(forward, *make_samples(input, target))


def depends_on_others(forward: Forward, input: TensorSpec, target: TensorSpec | None) -> bool:
    """Call the user's `forward` on generated samples, and return whether the values for a sample change if other
    samples are removed from the batch. `input`, `target`: specs of the samples."""
    judged, wanted = make_samples(input, target)
    with torch.no_grad():
        whole = call_forward(forward, judged, wanted)[:_FEWER]
        fewer = call_forward(forward, judged[:_FEWER], None if wanted is None else wanted[:_FEWER])
    size = whole.abs().max().item() if whole.numel() else 0.0
    return not torch.allclose(whole, fewer, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True)


def make_samples(input: TensorSpec, target: TensorSpec | None) -> tuple[Tensor, Tensor | None]:
    draws = torch.Generator().manual_seed(1)
    return _sample(input, draws), None if target is None else _sample(target, draws)


def _sample(spec: TensorSpec, draws: torch.Generator) -> Tensor:
    shape, dtype = (_ROWS, *spec.shape), getattr(torch, spec.dtype)
    if spec.is_floating:
        return torch.randn(shape, generator=draws).to(dtype if spec.dtype == "float64" else torch.float32)
    high = 2 if spec.dtype == "bool" else min(spec.num_values or 2, 100)
    return torch.randint(0, high, shape, generator=draws).to(dtype)
