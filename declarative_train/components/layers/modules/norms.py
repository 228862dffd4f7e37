"""Modules that normalise within a sample. They compute in float32, and the output has the dtype of the input. They turn
autocast off, because with autocast torch's kernels return float32 on GPUs, but not on the CPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class RmsNormModule(nn.Module):
    """RMS normalisation: x / sqrt(mean(x^2) + eps) over the last dimensions, computed in float32 at least,
    times a learned weight. With `zero_centered` the factor is 1 + weight.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        eps: float,
        affine: bool,
        dtype: torch.dtype | None = None,
        zero_centered: bool = False,
    ) -> None:
        super().__init__()
        self.shape = shape
        self.eps = eps
        self.zero_centered = zero_centered
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda and x.dtype != torch.float64 and not self.zero_centered:
            # CUDA has one kernel, which computes in float32 and keeps no copy of x in float32 for the backward
            (weight,) = cast_parameters(x, self.weight)
            with without_autocast(x):
                return F.rms_norm(x, self.shape, weight, self.eps)
        dtype = torch.promote_types(x.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        if weight is not None and self.zero_centered:
            weight = 1 + weight
        return F.rms_norm(x.to(dtype), self.shape, weight, self.eps).to(x.dtype)


class LayerNormModule(nn.Module):
    """Layer normalisation: (x - mean) / sqrt(variance + eps) over the last dimensions, then a learned scale
    and shift.
    """

    def __init__(
        self, shape: tuple[int, ...], eps: float, affine: bool, bias: bool, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.shape = shape
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(shape, dtype=dtype)) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = cast_parameters(x, self.weight, self.bias)
        with without_autocast(x):
            return F.layer_norm(x, self.shape, weight, bias, self.eps)


class GroupNormModule(nn.GroupNorm):
    """torch's group normalisation with autocast turned off."""

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = cast_parameters(input, self.weight, self.bias)
        with without_autocast(input):
            return F.group_norm(input, self.num_groups, weight, bias, self.eps)


class InstanceNormModule(nn.Module):
    """Instance normalisation of (B, C, T, ...): mean 0 and variance 1 for each sample and channel, then a
    learned scale and shift.
    """

    def __init__(self, num_features: int, eps: float, affine: bool, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(num_features, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.empty(num_features, dtype=dtype)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = cast_parameters(x, self.weight, self.bias)
        with without_autocast(x):
            return unify_format(F.instance_norm(unify_format(x), weight=weight, bias=bias, eps=self.eps))


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """Return a context manager that turns autocast off on the device of `x`. The kernels of the norms do not need
    autocast: they accept half precision and compute in float32.
    """
    kind = x.device.type
    is_on = kind != "meta" and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if is_on else nullcontext()


def cast_parameters(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the parameters, converted to the dtype of `x`. The dtypes differ, for example, if the model is in half
    precision and `x` is a float32 field of the data.
    """
    return tuple(None if item is None else item.to(x.dtype) for item in parameters)


def unify_format(x: Tensor) -> Tensor:
    """Return `x`, made contiguous (torch's default memory format) if it has only one row. Then its gradient is
    contiguous too.

    With one row, torch's CPU kernel of batch norm (torch 2.13) reads `x` or its gradient in the wrong order if they
    have different memory formats. Instance norm has the same problem: torch computes it as batch norm over a single
    row.
    """
    return x.reshape(-1).view(x.shape) if x.shape[0] == 1 and x.dim() > 2 else x
