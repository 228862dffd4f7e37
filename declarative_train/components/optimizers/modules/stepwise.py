"""Update rules of several operations, through torch's functional forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim._adafactor import adafactor
from torch.optim._muon import muon
from torch.optim.rmsprop import rmsprop

from declarative_train.components.optimizers.modules.functional import Rule, Run, State


def _counter() -> Tensor:
    """On the CPU: the rule reads it there."""
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    return torch.zeros((), dtype=dtype)


class StepwiseRmsprop(Rule):
    def __init__(self, **fields: Any) -> None:
        self.defaults = {
            **fields,
            "capturable": False,
            "foreach": None,
            "maximize": False,
            "differentiable": False,
        }

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("square_avg", "grad_avg", "momentum_buffer", "step")

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        state = {"step": _counter(), "square_avg": torch.zeros_like(parameter)}
        if group["momentum"] > 0:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        if group["centered"]:
            state["grad_avg"] = torch.zeros_like(parameter)
        return state

    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        group = run.group
        square_avgs, grad_avgs, momentum_buffers, steps = run.lists
        rmsprop(
            run.params,
            grads,
            square_avgs,
            grad_avgs if group["centered"] else [],
            momentum_buffers if group["momentum"] > 0 else [],
            steps,
            lr=group["lr"],
            alpha=group["alpha"],
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            centered=group["centered"],
        )


class StepwiseAdafactor(Rule):
    def __init__(self, **fields: Any) -> None:
        self.defaults = {**fields, "foreach": None, "maximize": False}

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("row_var", "col_var", "variance", "step")

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        """Two vectors instead of a matrix: that is what it saves."""
        if parameter.dim() <= 1:
            return {"step": _counter(), "variance": torch.zeros_like(parameter)}
        *rest, rows, columns = parameter.shape
        return {
            "step": _counter(),
            "row_var": parameter.new_zeros(*rest, rows, 1),
            "col_var": parameter.new_zeros(*rest, 1, columns),
        }

    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        group = run.group
        eps1, eps2 = group["eps"]
        row_vars, col_vars, variances, steps = run.lists
        adafactor(
            run.params,
            grads,
            row_vars,
            col_vars,
            variances,
            steps,
            d=group["d"],
            lr=group["lr"],
            beta2_decay=group["beta2_decay"],
            weight_decay=group["weight_decay"],
            eps1=eps1,
            eps2=eps2,
            maximize=False,
        )


class StepwiseMuon(Rule):
    def __init__(self, **fields: Any) -> None:
        self.defaults = fields

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        return {"momentum_buffer": torch.zeros_like(parameter)}

    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        options = {key: value for key, value in run.group.items() if key in self.defaults}
        muon(run.params, grads, run.lists[0], has_complex=False, **options)
