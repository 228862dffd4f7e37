"""Adam, AdamW and SGD as one kernel over all parameters, with less per-step overhead than torch.optim.

torch.optim imports `torch._dynamo` (0.9 s) at its first use, and collects its lists of tensors in every step: of the 29
us of `torch.optim.adamw.adamw(..., fused=True)` 18 go into grouping tensors (4 parameters, CPU). These optimizers
collect once. `param_groups` and `state` are the same, so that checkpoints are interchangeable.

Of sharded tensors each rank updates its own rows, which is exact since these rules are elementwise. torch would compute
the placement of the result for each new list of tensors (70 ms for 159, CPU), and has no rule for `_fused_sgd_`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
FUSED_DEVICES = ("cpu", "cuda", "xpu")


def runs_fused(groups: Iterable[Mapping[str, Any]], *, sharded: bool, devices: tuple[str, ...] = FUSED_DEVICES) -> bool:
    """Return whether a fused kernel accepts these parameters; `sharded`: DTensors are accepted too."""
    return all(
        parameter.is_floating_point()
        and parameter.device.type in devices
        and (type(parameter) in (Tensor, nn.Parameter) or (sharded and is_shared_out(parameter)))
        for group in groups
        for parameter in group["params"]
    )


def is_shared_out(tensor: Tensor) -> bool:
    """Return whether it is a DTensor, without importing that class, which takes 0.2 s."""
    return hasattr(tensor, "to_local")


def local_tensors(tensors: Iterable[Any]) -> list[Any]:
    """Return the local part of each tensor; call it under `no_grad`."""
    return [tensor.to_local() if is_shared_out(tensor) else tensor for tensor in tensors]


class KernelCall:
    """Parameters that one call of the kernel updates: the same group, device, dtype and number of steps so far.

    `lists[i]` has entry `names[i]` of each parameter's state, the rows of this rank; `step` is the counter, if they
    share one, and `counter` the fastest way to increment it: on the CPU the same number through numpy, since an
    operation of torch on one number takes 10 us.
    """

    __slots__ = ("counter", "first", "group", "is_shared_out", "lists", "params", "step")

    def __init__(self, group: dict[str, Any], first: bool, is_shared_out: bool) -> None:
        self.group, self.first, self.is_shared_out = group, first, is_shared_out
        self.params: list[Tensor] = []
        self.lists: tuple[list[Any], ...] = ()
        self.step: Tensor | None = None
        self.counter: Any = None


class _States(defaultdict[Tensor, State]):
    """State by parameter. Assigning a state (from a checkpoint) makes the optimizer collect its lists again."""

    def __init__(self, owner: Functional) -> None:
        super().__init__(dict)
        self._owner = owner

    def __setitem__(self, parameter: Tensor, state: State) -> None:
        super().__setitem__(parameter, state)
        self._owner.invalidate()


class Functional(torch.optim.Optimizer, ABC):
    """Base of these optimizers. Their lists hold the tensors of `state`: write into those, or assign
    `state[parameter]`; replacing a tensor inside a state has no effect. Of torch's interface there are only
    `param_groups`, `state`, `step()` and `found_inf`.

    `shares_step`: the kernel only reads the step counters, so that all parameters of a run can share one.
    """

    shares_step = False
    _step_supports_amp_scaling = True

    def __init__(self, groups: Iterable[dict[str, Any]], **fields: Any) -> None:  # torch's own __init__ imports dynamo
        self.defaults = {**fields, "maximize": False, "foreach": None, "differentiable": False, "fused": True}
        self.param_groups = [{**self.defaults, **group} for group in groups]
        self.state = _States(self)
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None
        self._runs: list[KernelCall] | None = None

    @abstractmethod
    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the entries of the state that the kernel reads as lists."""

    @abstractmethod
    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        """Return the state before the first step."""

    @abstractmethod
    def update(self, run: KernelCall, params: list[Tensor], grads: list[Tensor]) -> None:
        """Do one step on this rank's rows, in place; none if `found_inf` is 1."""

    def invalidate(self) -> None:
        self._runs = None

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for run in self._runs if self._runs is not None else self._gather():
                grads: list[Tensor] = []
                for parameter in run.params:
                    grad = parameter.grad
                    if grad is None:
                        break
                    grads.append(grad)
                else:
                    self._update(run, grads)
                    continue
                self._step_without(run)

    def _update(self, run: KernelCall, grads: list[Tensor]) -> None:
        if run.is_shared_out:  # at each step, since `fully_shard` may replace the tensors
            self.update(run, local_tensors(run.params), local_tensors(grads))
        else:
            self.update(run, run.params, grads)

    def _step_without(self, run: KernelCall) -> None:
        """Step if some parameters of the run have no gradient: they keep their state and step count, as in torch."""
        with_gradient = [parameter for parameter in run.params if parameter.grad is not None]
        for part in self._gather_group(run.group, with_gradient):
            self._update(part, [parameter.grad for parameter in part.params if parameter.grad is not None])
        self.invalidate()

    def _gather(self) -> list[KernelCall]:
        self._runs = [
            run
            for group in self.param_groups
            for run in self._gather_group(group, [p for p in group["params"] if p.grad is not None])
        ]
        runs = self._runs
        if any(parameter.grad is None for group in self.param_groups for parameter in group["params"]):
            self.invalidate()  # collect again at the next step
        return runs

    def _gather_group(self, group: dict[str, Any], params: Iterable[Tensor]) -> Iterable[KernelCall]:
        runs: dict[object, KernelCall] = {}
        for parameter in params:
            state = self.state[parameter]
            first = not state
            if first:
                state.update(self.start(parameter, group))
            shared_out = is_shared_out(parameter)
            key: tuple[object, ...] = (parameter.device, parameter.dtype, first, shared_out)
            if self.shares_step:
                key = (*key, float(state["step"]))
            runs.setdefault(key, KernelCall(group, first, shared_out)).params.append(parameter)
        for run in runs.values():
            states = [self.state[parameter] for parameter in run.params]
            if self.shares_step:
                run.step = states[0]["step"].clone()
                for state in states:
                    state["step"] = run.step
                run.counter = run.step.numpy() if type(run.step) is Tensor and run.step.is_cpu else run.step
            names = self.names(group)
            run.lists = tuple(local_tensors(state.get(name) for state in states) for name in names)
        return runs.values()


class FusedAdam(Functional):
    """Adam and, with `decoupled`, AdamW."""

    shares_step = True

    def __init__(self, groups: Iterable[dict[str, Any]], *, decoupled: bool, **fields: Any) -> None:
        super().__init__(groups, **fields, capturable=False, decoupled_weight_decay=decoupled)
        self._kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_

    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "step", *(("max_exp_avg_sq",) if group["amsgrad"] else ()))

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        names = (name for name in self.names(group) if name != "step")
        return {"step": step, **{name: torch.zeros_like(parameter) for name in names}}

    def update(self, run: KernelCall, params: list[Tensor], grads: list[Tensor]) -> None:
        group = run.group
        exp_avgs, exp_avg_sqs, steps, *largest = run.lists
        beta1, beta2 = group["betas"]
        run.counter += 1
        self._kernel(
            params,
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
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
        )
        if self.found_inf is not None:
            assert run.step is not None
            run.step.sub_(self.found_inf)


class FusedSgd(Functional):
    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        """Return no momentum: torch starts it as the first gradient, and the kernel writes it."""
        return {"momentum_buffer": torch.empty_like(parameter)} if group["momentum"] else {}

    def update(self, run: KernelCall, params: list[Tensor], grads: list[Tensor]) -> None:
        group = run.group
        torch._fused_sgd_(
            params,
            grads,
            run.lists[0] if run.lists else [],
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=group["dampening"],
            nesterov=group["nesterov"],
            maximize=False,
            is_first_step=run.first and bool(run.lists),
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
        )
        run.first = False
