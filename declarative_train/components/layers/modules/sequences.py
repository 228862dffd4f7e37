"""Modules for sequences (B, ..., T, D): positions, token types, a class token, pooling, and recurrent networks. Also a
learned tensor, a learned factor per element, and a bilinear form.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.context import ContextRanks


class LearnedPositionsModule(nn.Module):
    """Module that adds a learned vector for each position to x (B, ..., T, D). `positions` (B, ..., T): the positions;
    None means `start`, `start` + 1 and so on or, with a `context` axis, this rank's positions.
    """

    def __init__(self, max_length: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(max_length, width, dtype=dtype))
        self.context: ContextRanks | None = None

    def forward(self, x: Tensor, positions: Tensor | None = None, start: int = 0) -> Tensor:
        if positions is None and self.context is not None:
            positions = self.context.places(x.shape[-2], x.device)
        return x + (self.weight[start : start + x.shape[-2]] if positions is None else self.weight[positions.long()])


class TokenTypesModule(nn.Module):
    """Module that adds a learned vector for the type of each token to x (B, ..., T, D). `types`: integers (B,
    ..., T); None means that all tokens are of type 0.
    """

    def __init__(self, num_types: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_types, width, dtype=dtype))

    def forward(self, x: Tensor, types: Tensor | None = None) -> Tensor:
        return x + (self.weight[0] if types is None else self.weight[types.long()])


class SinusoidalPositionsModule(nn.Module):
    """Module that adds sines (first half of D) and cosines (second half) of the position to x (B, ..., T, D).
    `positions` (B, ..., T): the positions; None means `start`, `start` + 1 and so on or, with a `context` axis, this
    rank's positions.
    """

    def __init__(self, base: float) -> None:
        super().__init__()
        self.base = base
        self.context: ContextRanks | None = None

    def forward(self, x: Tensor, positions: Tensor | None = None, start: int = 0) -> Tensor:
        T, D = x.shape[-2:]
        if positions is None and self.context is not None:
            positions = self.context.places(x.shape[-2], x.device)
        dtype = torch.promote_types(x.dtype, torch.float32)
        frequencies = self.base ** (torch.arange(0, D, 2, dtype=dtype, device=x.device) / -D)
        if positions is None:
            positions = torch.arange(start, start + T, device=x.device)
        angles = positions.to(dtype).unsqueeze(-1) * frequencies
        return x + torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)


class ClassTokenModule(nn.Module):
    """Module that puts a learned token before the first token of each sequence: (B, ..., T, D) to (B, ..., T +
    1, D).
    """

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.to(x.dtype).expand(*x.shape[:-2], 1, -1), x], dim=-2)


class LearnedTensor(nn.Module):
    """Module of the layer `parameter`, from x (B, ...) to (B, *shape): the learned tensor, repeated for each sample.
    The result is a copy, because a view would keep the gathered parameters of a sharded module in memory.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.expand(x.shape[0], *self.weight.shape).clone()


class LayerScaleModule(nn.Module):
    """Module that multiplies x (B, ..., D) by a learned vector (D,)."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class SequencePoolModule(nn.Module):
    """Module that pools each sequence of x (B, ..., T, D) to one vector (B, ..., D). `mask` (B, ..., T): False at
    positions that do not count; None: all count. A sequence in which no position counts gives 0.
    """

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is None:
            if self.mode == "mean":
                return x.mean(-2)
            return x.amax(-2) if self.mode == "max" else x[..., 0 if self.mode == "first" else -1, :]
        keep = mask.unsqueeze(-1)
        if self.mode == "mean":
            return (x * keep).sum(-2) / keep.sum(-2).clamp(min=1).to(x.dtype)
        if self.mode == "max":
            highest = x.masked_fill(~keep, -torch.inf).amax(-2)
            return highest.masked_fill(~keep.any(-2), 0)
        places = torch.arange(x.shape[-2], device=x.device)
        one = torch.where(mask, -places if self.mode == "first" else places, -x.shape[-2]).argmax(-1)
        chosen = x.take_along_dim(one[..., None, None], dim=-2).squeeze(-2)
        return chosen * keep.any(-2)


def as_rows(x: Tensor) -> Tensor:
    """Return x (B, ..., T, D) reshaped to (N, T, D), one row for each sequence."""
    return x if x.dim() == 3 else x.flatten(0, -3)


def restore_dims(y: Tensor, x: Tensor) -> Tensor:
    """Return `y` (N, ...) with its first dimension replaced by the leading dimensions (B, ...) of `x` (B, ..., T, D).
    `y` has one row for each of the N sequences in `x`."""
    return y if x.dim() == 3 else y.reshape(*x.shape[:-2], *y.shape[1:])


def mask_as_rows(mask: Tensor | None, x: Tensor) -> Tensor | None:
    """Return the mask with its leading dimensions flattened like those of `x` in `as_rows`: (B, ..., S) becomes (N, S),
    and (B, ..., T, S) becomes (N, T, S). Leading dimensions of size 1 are first expanded to those of `x` (B, ..., T,
    D). None stays None."""
    if mask is None or x.dim() == 3:
        return mask
    leading = x.shape[:-2]
    return mask.expand(*leading, *mask.shape[len(leading) :]).flatten(0, len(leading) - 1)


# After fully_shard, dp or a cast, the weights are separate tensors, which cuDNN packs at each call. The warning advises
# `flatten_parameters`, but that works on parameters only.
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk of memory")


class LstmModule(nn.LSTM):
    """Module of the layer `lstm`, from x (B, ..., T, D) to the output and the last states hidden and cell."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        with _kernel(x):
            output, (hidden, cell) = super().forward(_input_for(x, self))
        return restore_dims(output, x), restore_dims(hidden.transpose(0, 1), x), restore_dims(cell.transpose(0, 1), x)


def _input_for(x: Tensor, layer: nn.RNNBase) -> Tensor:
    """Return the input of the recurrent layer `layer`: `x` reshaped to sequences (N, T, D) and, on a GPU, converted to
    the dtype of the layer's weights."""
    weight = layer.weight_ih_l0
    assert isinstance(weight, Tensor)
    return as_rows(x).to(weight.dtype) if x.device.type == "cuda" else as_rows(x)


def _kernel(x: Tensor) -> AbstractContextManager[object]:
    """Return the context manager in which a recurrent layer must run, so that torch uses a kernel that works. On CUDA
    it turns autocast off, because autocast would compute in float16 even if its dtype is bfloat16. On the CPU, with
    autocast or half precision, it turns oneDNN off: oneDNN's LSTM in half precision fails on many processors.
    """
    if x.device.type == "cuda":
        return torch.autocast("cuda", enabled=False)
    if x.device.type != "cpu" or not (torch.is_autocast_enabled("cpu") or x.dtype in (torch.bfloat16, torch.float16)):
        return nullcontext()
    onednn = torch.backends.mkldnn
    return onednn.flags(enabled=False, allow_tf32=onednn.allow_tf32)


class GruModule(nn.GRU):
    """Module of the layer `gru`, from x (B, ..., T, D) to the output and the last state."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        with _kernel(x):
            output, hidden = super().forward(_input_for(x, self))
        return restore_dims(output, x), restore_dims(hidden.transpose(0, 1), x)


class RnnModule(nn.RNN):
    """Module of the layer `rnn`, from x (B, ..., T, D) to the output and the last state."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        with _kernel(x):
            output, hidden = super().forward(_input_for(x, self))
        return restore_dims(output, x), restore_dims(hidden.transpose(0, 1), x)


class BilinearModule(nn.Bilinear):
    """Bilinear form of x (B, ..., D) and y (B, ..., E): the result is (B, ..., out). Autocast does not support
    `bilinear` on every device, so inputs in half precision are converted to the dtype of the weight.
    """

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.bilinear(x.to(self.weight.dtype), y.to(self.weight.dtype), self.weight, self.bias)
