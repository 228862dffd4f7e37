"""Chunked loss over classes. The items are divided into chunks, and the scores and the loss are computed for one chunk
at a time. So only the scores of one chunk are in memory. The backward computes them again.

Wijmans et al., Cut your losses in large-vocabulary language models, 2024, save even more memory with kernels of their
own.

N items, D width, C classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.packed import Packed
from declarative_train.components.losses.modules.classes import OverClasses


class ChunkedHead(nn.Module):
    """Module that replaces a linear layer and the loss after it. Its parameters are those of the linear layer. From x
    (B, *S, D), class numbers (B, *S) and mask (B, *S) it computes the loss of each item, (B, *S). It applies class
    weights, but not row weights, so padding rows have a loss like other rows.
    """

    bias: Tensor | None

    def __init__(self, linear: nn.Linear, term: OverClasses, num_chunks: int) -> None:
        """Take the parameters of `linear`. `term`: the loss module that computes the loss of each item.
        `num_chunks`: number of chunks into which the items are divided.
        """
        super().__init__()
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)
        self.packed: Packed | None = None
        self._ranks: TensorRanks | None = None
        self._term = _Term(term)
        self._num_chunks = num_chunks

    def divide(self, ranks: TensorRanks) -> None:
        """Make this module use only the classes of this rank. The caller replaces the parameters by the rows of these
        classes.
        """
        self._ranks = ranks
        self._term.term.divide(ranks)

    def forward(self, x: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if self._ranks is None else self._ranks.enter(x)
        device = x.device.type
        weight: Tensor = self.weight
        bias = self.bias
        if torch.is_autocast_enabled(device):  # autocast does not apply inside an autograd.Function
            dtype = torch.get_autocast_dtype(device)
            x, weight = x.to(dtype), weight.to(dtype) if self.packed is None else weight
            bias = None if bias is None else bias.to(dtype)
        flat_mask = None if mask is None else mask.flatten()
        items: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
            x.flatten(0, -2), weight, bias, target.flatten(), flat_mask, self._term, self._num_chunks, self.packed
        )
        return items.view(target.shape)


class _Term:
    """Function that returns the loss of each item, computed by the loss module `term`.

    It is no module, so that `term` does not become a submodule of the `ChunkedHead`: a submodule loses its class
    weights when the model leaves the meta device. A call moves the class weights to the device of `x`."""

    def __init__(self, term: OverClasses) -> None:
        self.term = term

    def __call__(self, x: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        if self.term.class_weights is not None and self.term.class_weights.device != x.device:
            self.term.to(x.device)
        return self.term.items(x, target, mask)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_CD: Tensor,
        bias_C: Tensor | None,
        target_N: Tensor,
        mask_N: Tensor | None,
        term: _Term,
        num_chunks: int,
        packed: Packed | None,
    ) -> Tensor:
        ctx.save_for_backward(x_ND, weight_CD, bias_C, target_N, mask_N)
        ctx.term, ctx.num_chunks, ctx.packed = term, num_chunks, packed
        weight_CD = weight_CD if packed is None else packed.unpack(weight_CD, x_ND.dtype)
        with torch.autocast(x_ND.device.type, enabled=False):
            parts = [
                term(F.linear(x_ND[rows], weight_CD, bias_C), target_N[rows], _of(mask_N, rows))
                for rows in _parts(len(x_ND), num_chunks)
            ]
            return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_N: Tensor) -> tuple[Tensor | None, ...]:
        x_ND, weight_CD, bias_C, target_N, mask_N = ctx.saved_tensors
        for_x, for_weight, for_bias, *_ = ctx.needs_input_grad
        dx_ND = torch.empty_like(x_ND) if for_x else None
        dweight_CD = torch.zeros_like(weight_CD) if for_weight else None
        if ctx.packed is not None:
            weight_CD = ctx.packed.unpack(weight_CD, x_ND.dtype)
        dbias_C = torch.zeros_like(bias_C) if for_bias else None
        with torch.autocast(x_ND.device.type, enabled=False):
            for rows in _parts(len(x_ND), ctx.num_chunks):
                scores = F.linear(x_ND[rows], weight_CD, bias_C).requires_grad_()
                with torch.enable_grad():
                    items = ctx.term(scores, target_N[rows], _of(mask_N, rows))
                (dscores,) = torch.autograd.grad(items, scores, gradient_N[rows])
                del items, scores  # free before the products, which need as much memory again
                if dx_ND is not None:
                    torch.mm(dscores, weight_CD, out=dx_ND[rows])
                if dweight_CD is not None:
                    dweight_CD.addmm_(dscores.t(), x_ND[rows])
                if dbias_C is not None:
                    dbias_C += dscores.sum(0)
        return dx_ND, dweight_CD, dbias_C, None, None, None, None, None


def _parts(size: int, number: int) -> list[slice]:
    step = max(1, -(-size // number))
    return [slice(first, first + step) for first in range(0, max(1, size), step)]


def _of(tensor: Tensor | None, rows: slice) -> Tensor | None:
    return None if tensor is None else tensor[rows]
