"""Random start values: drawn on the CPU, in row-major order, then copied to wherever the parameter lives.

So the same generator gives the same bits on every device, whatever the strides of the parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from declarative_train.components.component import Misfit

if TYPE_CHECKING:
    import torch


def draw(tensor: torch.Tensor, write: Callable[[torch.Tensor], object]) -> None:
    """`write` fills a contiguous CPU tensor in place; `tensor` gets its values."""
    import torch

    with torch.no_grad():
        if tensor.device.type == "cpu" and tensor.is_contiguous():
            write(tensor)
            return
        values = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        write(values)
        tensor.copy_(values)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """Values that flow into and out of one unit of a weight (out, in, *kernel)."""
    kernel = prod(shape[2:])
    return shape[1] * kernel, shape[0] * kernel


def needs_a_matrix(rule: str, shape: tuple[int, ...]) -> Misfit | None:
    """Rules that count inputs and outputs cannot start a bias or a scale."""
    if len(shape) >= 2:
        return None
    return Misfit(
        f"`{rule}` needs a parameter of at least 2 dimensions, this one has shape {_written(shape)}",
        help="select weights only, and start biases with `zeros`",
    )


def _written(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"
