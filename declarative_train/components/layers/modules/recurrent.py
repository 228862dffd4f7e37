"""Recurrent networks with states batch first: outputs (B, T, H * directions), states (B, layers * directions, H)."""

from __future__ import annotations

from torch import Tensor, nn


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
