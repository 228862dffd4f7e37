"""Update rules that are one kernel over all parameters.

The kernels are called directly: `torch.optim.adamw.adamw(..., fused=True)` does the same, but spends 18 of its 29 us on
grouping tensors (4 parameters, CPU), which the optimizer around these rules has done once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from declarative_train.components.optimizers.modules.functional import Rule, Run, State

FUSED_DEVICES = ("cpu", "cuda", "xpu")


def runs_fused(groups: Iterable[Mapping[str, Any]], *, sharded: bool, devices: tuple[str, ...] = FUSED_DEVICES) -> bool:
    """Whether a fused kernel takes these parameters; `sharded`: it has a rule for those that are split over ranks."""
    return all(
        parameter.is_floating_point()
        and parameter.device.type in devices
        and (sharded or type(parameter) in (Tensor, nn.Parameter))
        for group in groups
        for parameter in group["params"]
    )


def _counter(parameter: Tensor) -> Tensor:
    return torch.zeros((), dtype=torch.float32, device=parameter.device)


class FusedAdam(Rule):
    """Adam and, `decoupled`, AdamW."""

    shares_step = True
    takes_found_inf = True

    def __init__(self, *, decoupled: bool, **fields: Any) -> None:
        self.defaults = {
            **fields,
            "maximize": False,
            "foreach": None,
            "capturable": False,
            "differentiable": False,
            "fused": True,
            "decoupled_weight_decay": decoupled,
        }
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "step", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))
        return {"step": _counter(parameter), **{name: torch.zeros_like(parameter) for name in names}}

    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        group, step = run.group, run.step
        assert step is not None
        exp_avgs, exp_avg_sqs, steps, *largest = run.lists
        beta1, beta2 = group["betas"]
        step.add_(1)
        self._kernel(
            run.params,
            grads,
            exp_avgs,
            exp_avg_sqs,
            largest[0] if largest else [],
            steps,
            amsgrad=group["amsgrad"],
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=grad_scale,
            found_inf=found_inf,
        )
        if found_inf is not None:
            step.sub_(found_inf)


class FusedSgd(Rule):
    takes_found_inf = True

    def __init__(self, **fields: Any) -> None:
        self.defaults = {**fields, "maximize": False, "foreach": None, "differentiable": False, "fused": True}

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        """torch's momentum starts as the first gradient: the kernel writes it."""
        return {"momentum_buffer": torch.empty_like(parameter)} if group["momentum"] else {}

    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        group = run.group
        torch._fused_sgd_(
            run.params,
            grads,
            run.lists[0] if run.lists else [],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=run.first and bool(run.lists),
            grad_scale=grad_scale,
            found_inf=found_inf,
        )
        run.first = False


class FusedAdagrad(Rule):
    shares_step = True
    starts_early = True
    takes_found_inf = True

    def __init__(self, **fields: Any) -> None:
        self.defaults = {**fields, "foreach": None, "maximize": False, "differentiable": False, "fused": True}

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("sum", "step")

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        start = torch.full_like(parameter, self.defaults["initial_accumulator_value"])
        return {"step": _counter(parameter), "sum": start.detach()}

    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        group, step = run.group, run.step
        assert step is not None
        sums, steps = run.lists
        step.add_(1)
        torch._fused_adagrad_(
            run.params,
            grads,
            sums,
            steps,
            lr=group["lr"],
            lr_decay=group["lr_decay"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            grad_scale=grad_scale,
            found_inf=found_inf,
        )
        if found_inf is not None:
            step.sub_(found_inf)
