"""Matrix products for rows in groups, where each group has its own matrix: torch's `grouped_mm` on a GPU,
otherwise one product per group.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from declarative_train.components.layers.modules.documents import has_kernel, is_fake

_ALIGNED = 8  # elements of 16 bits in 16 bytes


def multiply_groups(x: Tensor, weight_EOI: Tensor, ends: Tensor) -> Tensor:
    """Return each row of `x` (R, I) times the transposed matrix of the row's group, (R, O). `weight_EOI`: the matrices
    of the E groups. The rows of a group are consecutive. `ends` (E,) int32: for each group, the index after its last
    row.
    """
    if _has_product(x, weight_EOI):
        return F.grouped_mm(x, weight_EOI.mT, offs=ends)
    found: Tensor = _GroupedLinear.apply(x, weight_EOI, ends)  # type: ignore[no-untyped-call]
    return found


def _has_product(x: Tensor, weight_EOI: Tensor) -> bool:
    _, out, width = weight_EOI.shape
    is_aligned = out % _ALIGNED == 0 and width % _ALIGNED == 0 and x.shape[0] > 0
    return x.dtype == torch.bfloat16 and is_aligned and not x.is_meta and has_kernel(x)


class _GroupedLinear(torch.autograd.Function):
    """Differentiable matrix products for rows in groups, computed one group after the other. For meta or fake
    tensors only the shapes are computed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_EOI: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight_EOI)
        ctx.groups = _groups(ends)
        y = x.new_empty(x.shape[0], weight_EOI.shape[1])
        for each, rows in ctx.groups:
            torch.mm(x[rows], weight_EOI[each].t(), out=y[rows])
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight_EOI = ctx.saved_tensors
        dy, dx, dweight = dy.contiguous(), None, None
        if ctx.needs_input_grad[0]:
            dx = torch.empty_like(x)
            for each, rows in ctx.groups:
                torch.mm(dy[rows], weight_EOI[each], out=dx[rows])
        if ctx.needs_input_grad[1]:
            dweight = torch.zeros_like(weight_EOI)  # a group may have no rows
            for each, rows in ctx.groups:
                torch.mm(dy[rows].t(), x[rows], out=dweight[each])
        return dx, dweight, None


def _groups(ends: Tensor) -> list[tuple[int, slice]]:
    """Return pairs (index of the group, slice of its rows), one for each group that has rows. `ends` (E,): for each
    group, the index after its last row. To read `ends`, the host waits for the device. The list is empty for meta and
    fake tensors, which have no values.
    """
    if ends.is_meta or is_fake(ends):
        return []
    numbers = ends.tolist()
    pairs = zip([0, *numbers], numbers, strict=False)
    return [(group, slice(first, end)) for group, (first, end) in enumerate(pairs) if end > first]


def permute_rows(x: Tensor, index: Tensor, back: Tensor) -> Tensor:
    """Return the rows of `x` in the order `index`. `back`: the inverse permutation, which the backward uses."""
    found: Tensor = _Rows.apply(x, index, back, 1)  # type: ignore[no-untyped-call]
    return found


def repeat_rows(x: Tensor, order: Tensor, back: Tensor, times: int) -> Tensor:
    """Return the N * times rows `x[order // times]`: each row of `x` (N, D) is repeated `times` times. `order`
    (N * times,): a permutation. `back`: its inverse, for the backward."""
    found: Tensor = _Rows.apply(x, order, back, times)  # type: ignore[no-untyped-call]
    return found


class _Rows(torch.autograd.Function):
    """Autograd function that selects rows by index; a row may be selected several times. The backward adds the
    gradients of the copies of a row in a fixed order, so that it is deterministic. The backward of torch's indexing is
    not: it uses atomic additions.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor, times: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.times = times
        return x[order // times if times > 1 else order]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        dx = dy[back]
        return dx if ctx.times == 1 else dx.view(-1, ctx.times, dx.shape[-1]).sum(1), None, None, None
