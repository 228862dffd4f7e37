"""A bilinear form, and recurrent networks with states batch first: outputs (B, ..., T, H * directions), states
(B, ..., layers * directions, H)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.leading import as_rows, placed


class Lstm(nn.LSTM):
    """x (B, ..., T, D) -> output, hidden, cell."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        with _kernel(x):
            output, (hidden, cell) = super().forward(as_rows(x))
        return placed(output, x), placed(hidden.transpose(0, 1), x), placed(cell.transpose(0, 1), x)


def _kernel(x: Tensor) -> AbstractContextManager[None]:
    """oneDNN's LSTM in half precision fails on CPUs that know AVX2 alone; torch's own runs there."""
    if x.device.type != "cpu" or not (torch.is_autocast_enabled("cpu") or x.dtype in (torch.bfloat16, torch.float16)):
        return nullcontext()
    half = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    known = torch.ops.mkldnn
    supported = known._is_mkldnn_bf16_supported if half == torch.bfloat16 else known._is_mkldnn_fp16_supported
    return nullcontext() if supported() else without_onednn()


@contextmanager
def without_onednn() -> Iterator[None]:
    """torch.backends.mkldnn.flags also sets TF32, and warns of it."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


class Gru(nn.GRU):
    """x (B, ..., T, D) -> output, hidden."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output, hidden = super().forward(as_rows(x))
        return placed(output, x), placed(hidden.transpose(0, 1), x)


class Rnn(nn.RNN):
    """x (B, ..., T, D) -> output, hidden."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output, hidden = super().forward(as_rows(x))
        return placed(output, x), placed(hidden.transpose(0, 1), x)


class Bilinear(nn.Bilinear):
    """x (B, ..., D), y (B, ..., E) -> (B, ..., out). Autocast does not know `bilinear` on every device, so inputs that
    it lowered come back to the dtype of the weight."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.bilinear(x.to(self.weight.dtype), y.to(self.weight.dtype), self.weight, self.bias)
