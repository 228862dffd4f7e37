"""An optimizer around an update rule: what `torch.optim.Optimizer` offers, without what it costs.

Any object of torch's own imports `torch._dynamo` (0.9 s) at its first use, and gathers its lists anew in every step.
This one gathers them once. Same `param_groups`, `state` and `state_dict()`, so checkpoints go both ways.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

State = dict[str, Tensor]
DEVICE_FLAGS = frozenset({"fused", "foreach", "capturable", "differentiable"})  # of this machine, not of a checkpoint


class Run:
    """Parameters that one call of the rule updates: one group, device and dtype, and one number of steps so far.

    `lists[i]` holds entry `names[i]` of each parameter's state; `step` the counter that they share, where they do.
    """

    __slots__ = ("first", "group", "lists", "params", "step")

    def __init__(self, group: dict[str, Any], first: bool) -> None:
        self.group, self.first = group, first
        self.params: list[Tensor] = []
        self.lists: tuple[list[Any], ...] = ()
        self.step: Tensor | None = None


class Rule(ABC):
    """`defaults` are those of torch's object. `shares_step`: the kernel only reads the step counters, so that all
    parameters of a run can have the same one, counted once."""

    defaults: Mapping[str, Any]
    shares_step = False
    starts_early = False  # the state exists before the first step
    takes_found_inf = False

    @abstractmethod
    def names(self, group: Mapping[str, Any]) -> tuple[str, ...]:
        """The entries of the state that `update` reads as lists."""

    @abstractmethod
    def start(self, parameter: Tensor, group: Mapping[str, Any]) -> State:
        """The state before the first step."""

    @abstractmethod
    def update(self, run: Run, grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
        """One step, in place. `found_inf` 1: no step (only of rules that take it)."""


class _States(defaultdict[Tensor, State]):
    """By parameter. Who puts another state in its place (a checkpoint) makes the optimizer gather anew."""

    def __init__(self, owner: Functional) -> None:
        super().__init__(dict)
        self._owner = owner

    def __setitem__(self, parameter: Tensor, state: State) -> None:
        super().__setitem__(parameter, state)
        self._owner.gather_anew()


class Functional(torch.optim.Optimizer):
    """Its lists hold the tensors of `state`: write into those, or set `state[parameter]`; a tensor that is replaced
    inside a state is not seen. Hooks of torch's optimizers are not called."""

    def __init__(self, groups: Iterable[dict[str, Any]], rule: Rule) -> None:  # torch's own __init__ imports dynamo
        self.defaults = dict(rule.defaults)
        self.param_groups = []
        self.state = _States(self)
        self.grad_scale: Tensor | None = None
        self.found_inf: Tensor | None = None
        self._step_supports_amp_scaling = rule.takes_found_inf
        self._rule = rule
        self._runs: list[Run] | None = None
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        params = param_group["params"]
        group = {**param_group, "params": [params] if isinstance(params, Tensor) else list(params)}
        for key, value in self.defaults.items():
            group.setdefault(key, value)
        self.param_groups.append(group)
        if self._rule.starts_early:
            for parameter in group["params"]:
                self.state[parameter] = self._rule.start(parameter, group)
        self.gather_anew()

    def gather_anew(self) -> None:
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
                    self._rule.update(run, grads, self.grad_scale, self.found_inf)
                    continue
                self._step_without(run)

    def _step_without(self, run: Run) -> None:
        """A parameter of the run has no gradient: it keeps its state and its steps, as in torch's own."""
        with_gradient = [parameter for parameter in run.params if parameter.grad is not None]
        for part in self._gather_group(run.group, with_gradient):
            grads = [parameter.grad for parameter in part.params if parameter.grad is not None]
            self._rule.update(part, grads, self.grad_scale, self.found_inf)
        self.gather_anew()

    def _gather(self) -> list[Run]:
        self._runs = [
            run
            for group in self.param_groups
            for run in self._gather_group(group, [p for p in group["params"] if p.grad is not None])
        ]
        runs = self._runs
        if any(parameter.grad is None for group in self.param_groups for parameter in group["params"]):
            self.gather_anew()  # look again at the next step
        return runs

    def _gather_group(self, group: dict[str, Any], params: Iterable[Tensor]) -> Iterable[Run]:
        runs: dict[object, Run] = {}
        for parameter in params:
            state = self.state[parameter]
            first = not state
            if first:
                state.update(self._rule.start(parameter, group))
            key: tuple[object, ...] = (parameter.device, parameter.dtype, first)
            if self._rule.shares_step:
                key = (*key, float(state["step"]))
            runs.setdefault(key, Run(group, first)).params.append(parameter)
        for run in runs.values():
            states = [self.state[parameter] for parameter in run.params]
            if self._rule.shares_step:
                run.step = states[0]["step"].clone()
                for state in states:
                    state["step"] = run.step
            names = self._rule.names(group)
            run.lists = tuple([state.get(name) for state in states] for name in names)
        return runs.values()

    def zero_grad(self, set_to_none: bool = True) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad = parameter.grad.detach().zero_()

    def state_dict(self) -> dict[str, Any]:
        """As torch's: tensors not copied, but for step counters that are shared here and must not be elsewhere."""
        number: dict[int, int] = {}
        for group in self.param_groups:
            for parameter in group["params"]:
                number.setdefault(id(parameter), len(number))
        groups = [{**group, "params": [number[id(p)] for p in group["params"]]} for group in self.param_groups]
        states = {number[id(p)]: self._saved(state) for p, state in self.state.items() if state}
        return {"state": states, "param_groups": groups}

    def _saved(self, state: State) -> State:
        return {**state, "step": state["step"].clone()} if self._rule.shares_step else dict(state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As torch's, but that `fused` and the like stay what this machine has. Raises ValueError when the groups do
        not match."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError(
                "the saved optimizer has parameter groups of other sizes: "
                f"{[len(group['params']) for group in saved]}, here {[len(g['params']) for g in self.param_groups]}"
            )
        by_number: dict[int, tuple[Tensor, dict[str, Any]]] = {}
        for group, other in zip(self.param_groups, saved, strict=True):
            by_number |= {n: (p, group) for n, p in zip(other["params"], group["params"], strict=True)}
            group.update({key: value for key, value in other.items() if key not in DEVICE_FLAGS | {"params"}})
        self.state.clear()
        for number, state in state_dict["state"].items():
            parameter, group = by_number[number]
            self.state[parameter] = {name: _placed(name, value, parameter, group) for name, value in state.items()}
        self.gather_anew()


def _placed(name: str, value: Tensor, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """With the parameter and of its dtype; a step counter is float32, and on the device if the kernel reads it."""
    if name != "step":
        return value.to(device=parameter.device, dtype=parameter.dtype)
    return value.to(device=parameter.device, dtype=torch.float32) if group.get("fused") else value
