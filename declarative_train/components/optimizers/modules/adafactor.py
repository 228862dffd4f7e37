"""Adafactor without reading two numbers per parameter and step from the device, as torch's implementation does: on a
GPU each read waits until all launched work is done.

Shazeer and Stern, https://arxiv.org/abs/1804.04235, in the form of `torch.optim.Adafactor`, with its state.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import Any

import torch
from torch import Tensor


class AdafactorOptimizer(torch.optim.Optimizer):
    """Optimizer with torch's state: `step` (a number on the host), and `row_var`, `col_var` of the last two dimensions
    of a matrix, `variance` of a vector.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        fields = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
        super().__init__(params, fields)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _start(self, grad: Tensor) -> dict[str, Tensor]:
        state = {"step": torch.tensor(0.0)}
        if grad.dim() < 2:
            return state | {"variance": torch.zeros_like(grad)}
        *others, rows, columns = grad.shape
        return state | {"row_var": grad.new_zeros(*others, rows, 1), "col_var": grad.new_zeros(*others, 1, columns)}

    def _update(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self._start(grad))
        state["step"] += 1
        step = float(state["step"])
        lr, (least_square, least_size) = group["lr"], group["eps"]
        if least_square is None:
            least_square = torch.finfo(parameter.dtype).eps
        moved = step ** group["beta2_decay"]
        rate = _root_mean_square(parameter).clamp_(min=least_size) * min(lr, step**-0.5)
        if group["weight_decay"]:
            parameter.mul_(1 - lr * group["weight_decay"])
        update = _squares(state, grad, moved, least_square).clamp_(min=least_square**2).rsqrt_().mul_(grad)
        cut = (_root_mean_square(update) / group["d"]).clamp_(min=1)
        parameter.sub_(update.mul_(rate / cut))


def _squares(state: dict[str, Tensor], grad: Tensor, moved: float, least_square: float) -> Tensor:
    """Update the state by the share `moved` and return a new tensor with the estimate of the squared gradient."""
    if "variance" in state:
        return state["variance"].lerp_(grad.square(), moved).clone()
    row_var, col_var = state["row_var"], state["col_var"]
    row_var.lerp_(_mean_square(grad, -1), moved)
    col_var.lerp_(_mean_square(grad, -2), moved)
    return (row_var @ col_var).div_(row_var.mean(dim=-2, keepdim=True).clamp_(min=least_square))


def _mean_square(grad: Tensor, dim: int) -> Tensor:
    """Return the mean square along `dim`, from a norm, which needs no tensor of squares."""
    norm: Tensor = torch.linalg.vector_norm(grad, dim=dim, keepdim=True)
    return norm.square_().div_(grad.size(dim))


def _root_mean_square(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / sqrt(tensor.numel())
