"""Lion, an optimizer that updates by the sign of a momentum. torch does not have it. Chen et al., "Symbolic discovery
of optimization algorithms", algorithm 2, https://arxiv.org/abs/2302.06675.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


def lion(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
) -> None:
    """Update `params` and their momenta, `exp_avgs`, in place by one step. For a momentum m and a gradient g, the
    direction of the update is sign(beta1 m + (1 - beta1) g); then m becomes beta2 m + (1 - beta2) g.
    """
    updates = torch._foreach_mul(exp_avgs, beta1)
    torch._foreach_add_(updates, grads, alpha=1 - beta1)
    if type(updates[0]) is Tensor:
        torch._foreach_sign_(updates)
    else:  # shards: torch 2.11 cannot take the signs of a list of them
        for update in updates:
            update.sign_()
    if weight_decay:
        torch._foreach_mul_(params, 1 - lr * weight_decay)
    torch._foreach_add_(params, updates, alpha=-lr)
    torch._foreach_mul_(exp_avgs, beta2)
    torch._foreach_add_(exp_avgs, grads, alpha=1 - beta2)


class LionOptimizer(torch.optim.Optimizer):
    """Lion as a `torch.optim.Optimizer`. The state of a parameter is its momentum, `exp_avg`."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                params = [parameter for parameter in group["params"] if parameter.grad is not None]
                for parameter in params:
                    if not self.state[parameter]:
                        self.state[parameter]["exp_avg"] = torch.zeros_like(parameter)
                if params:
                    exp_avgs = [self.state[parameter]["exp_avg"] for parameter in params]
                    grads = [parameter.grad for parameter in params]
                    beta1, beta2 = group["betas"]
                    decay = group["weight_decay"]
                    lion(params, grads, exp_avgs, lr=group["lr"], beta1=beta1, beta2=beta2, weight_decay=decay)
        return loss
