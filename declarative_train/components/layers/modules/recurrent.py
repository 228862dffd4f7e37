"""A bilinear form, and recurrent networks with states batch first: outputs (B, T, H * directions), states
(B, layers * directions, H)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class Lstm(nn.LSTM):
    """x (B, T, D) -> output, hidden, cell."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        output, (hidden, cell) = super().forward(x)
        return output, hidden.transpose(0, 1), cell.transpose(0, 1)


class Gru(nn.GRU):
    """x (B, T, D) -> output, hidden."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output, hidden = super().forward(x)
        return output, hidden.transpose(0, 1)


class Rnn(nn.RNN):
    """x (B, T, D) -> output, hidden."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        output, hidden = super().forward(x)
        return output, hidden.transpose(0, 1)


class Bilinear(nn.Bilinear):
    """x (B, ..., D), y (B, ..., E) -> (B, ..., out). Autocast does not know `bilinear` on every device, so inputs that
    it lowered come back to the dtype of the weight."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.bilinear(x.to(self.weight.dtype), y.to(self.weight.dtype), self.weight, self.bias)
