"""Optimizers of a model behind one interface. Parameters are grouped by (optimizer, lr_scale, weight_decay), and one
factor of the lr schedule applies to all groups."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    from declarative_train.plan.plan import ParameterPlan


Setting = tuple[float, float | None]  # lr_scale, weight_decay
Rules = Mapping[
    str, tuple[Optimizer, Mapping[Setting, Sequence[str]]]
]  # by name: an optimizer and the parameters that it updates


@dataclass(slots=True)
class Group:
    """Parameter group of a torch optimizer. `base_lr`: learning rate without the schedule's factor. `live`: the
    optimizer's own dict for this group, in which the learning rate is changed."""

    base_lr: float
    live: dict[str, Any]


class Optimizers:
    """Optimizers of this rank's parameters, which are used as if they were one. `parameters`: the parameters that they
    update, by name."""

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        parts: Sequence[torch.optim.Optimizer],
        groups: Sequence[Group],
        base_lrs: Mapping[str, float],
    ) -> None:
        self.parameters = parameters
        self.groups = tuple(groups)
        self._base_lrs = base_lrs
        self._parts = tuple(parts)
        self._tensors = tuple(parameters.values())
        self._factor = 1.0
        self._averaging = [part for part in parts if hasattr(part, "train") and hasattr(part, "eval")]
        self._trains = True

    def zero_grad(self) -> None:
        for parameter in self._tensors:
            parameter.grad = None

    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self._tensors if parameter.grad is not None]

    def set_lr_factor(self, factor: float) -> None:
        if factor != self._factor:
            self._factor = factor
            for group in self.groups:
                group.live["lr"] = group.base_lr * factor

    def lr(self) -> dict[str, float]:
        """Return a dict from the name of a parameter group, as in the logs, to its current learning rate. It has the
        groups of all pipeline stages."""
        return {tag: base * self._factor for tag, base in self._base_lrs.items()}

    def switch(self, *, trains: bool) -> bool:
        """Put the values for training (`trains`), or those for evaluations and checkpoints, into the parameters. They
        differ only for optimizers that average the parameters over steps. Return whether parameters may have changed.
        """
        if trains == self._trains or not self._averaging:
            return False
        self._trains = trains
        for part in self._averaging:
            part.train() if trains else part.eval()
        return True

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def step_if(self, finite: torch.Tensor) -> None:
        """Update the parameters if `finite`, a bool tensor, is true. Fused optimizers on CUDA read it on the device;
        for others, the host waits for its value."""
        fused = all(group.get("fused") for part in self._parts for group in part.param_groups)
        if not fused or finite.device.type != "cuda":
            if bool(finite):
                self.step()
            return
        found_inf = (~finite).float()
        for part in self._parts:
            part.found_inf = found_inf  # type: ignore[attr-defined]
            part.grad_scale = None  # type: ignore[attr-defined]
            part.step()

    def state(self) -> Iterator[tuple[str, str, Any]]:
        """Yield (parameter, entry, value) for each entry of the optimizer state, such as `exp_avg`."""
        for name, parameter in self.parameters.items():
            for part in self._parts:
                pack = getattr(part, "pack_state", None)  # defined by optimizers whose state is not plain tensors
                packed = part.state.get(parameter, {}) if pack is None else pack(parameter)
                for entry, value in packed.items():
                    yield name, entry, value

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Load the optimizer state. `state`: for each parameter, a dict from entry (such as `exp_avg`) to value.
        Parameters that are not in `state` start without optimizer state."""
        for part in self._parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    found = state.get(self._name(parameter))
                    if found:
                        placed = {entry: _place_state(entry, value, parameter, group) for entry, value in found.items()}
                        unpack = getattr(part, "unpack_state", None)
                        part.state[parameter] = placed if unpack is None else unpack(parameter, placed)

    def _name(self, parameter: nn.Parameter) -> str:
        return next(name for name, other in self.parameters.items() if other is parameter)


def _place_state(entry: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """Return the value of one entry of a parameter's optimizer state as the optimizer expects it. The entry `step`, a
    counter, becomes a tensor. It is on the parameter's device if the optimizer's kernel reads it there (`fused` or
    `capturable` in `group`), otherwise on the CPU. Other entries are unchanged."""
    if entry != "step":
        return value
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    on_device = group.get("fused") or group.get("capturable")
    return torch.as_tensor(value, dtype=dtype, device=parameter.device if on_device else "cpu")


def build_optimizers(
    plans: Sequence[ParameterPlan],
    optimizer: Mapping[str, object],
    named: Mapping[str, nn.Parameter],
) -> Optimizers:
    """Return the optimizers of this rank's parameters, `named`. `plans`: how each parameter of the model is updated.
    `optimizer`: the recipe's optimizer, which updates the parameters without an optimizer of their own."""
    rules = name_optimizers(plans, optimizer)
    parts: list[torch.optim.Optimizer] = []
    groups: list[Group] = []
    updated: set[str] = set()
    for component, by_setting in rules.values():
        held = {
            setting: names
            for setting, whole in by_setting.items()
            if (names := [name for name in whole if name in named])
        }
        if not held:
            continue
        part = _build(component, held, named)
        parts.append(part)
        groups += [Group(float(live["lr"]), live) for live in part.param_groups]
        updated.update(name for names in held.values() for name in names)
    ordered = {name: item for name, item in named.items() if name in updated}
    return Optimizers(ordered, parts, groups, base_lrs(rules))


def name_optimizers(plans: Sequence[ParameterPlan], optimizer: Mapping[str, object]) -> Rules:
    """Return all optimizers of the model: a dict from name (`adamw`, `adamw_2`) to (optimizer, parameters).
    `parameters` is a dict from (lr_scale, weight_decay) to the names of the parameters with these settings.

    Names and order are the same on every rank and in every mode. `optimizer`: the recipe's optimizer, for parameters
    that have none of their own.
    """
    found: dict[str, tuple[Mapping[str, object], dict[Setting, list[str]]]] = {}
    found[_key(optimizer)] = optimizer, {}
    for parameter in plans:
        if not parameter.frozen and parameter.tie is None:
            fields = parameter.optimizer or optimizer
            _, by_setting = found.setdefault(_key(fields), (fields, {}))
            by_setting.setdefault((parameter.lr_scale, parameter.weight_decay), []).append(parameter.name)
    rules: dict[str, tuple[Optimizer, Mapping[Setting, Sequence[str]]]] = {}
    seen: Counter[str] = Counter()
    for fields, by_setting in found.values():
        if by_setting:
            component = OPTIMIZERS.read(fields)
            seen[component.type] += 1
            number = seen[component.type]
            rules[component.type if number == 1 else f"{component.type}_{number}"] = component, by_setting
    return rules


def _key(fields: Mapping[str, object]) -> str:
    return json.dumps(fields, sort_keys=True)


def base_lrs(rules: Rules) -> dict[str, float]:
    """Return a dict from each parameter group, by its name in the logs, to its base learning rate. (The schedule
    multiplies this by a factor in each step.) If all groups have the same rate, return a single entry `lr`."""
    found: dict[str, float] = {}
    for name, (component, by_setting) in rules.items():
        for lr_scale, weight_decay in by_setting:
            words = [name] if len(rules) > 1 else []
            words += [f"scale_{lr_scale:.12g}"] if lr_scale != 1 else []
            words += [f"decay_{weight_decay:.12g}"] if weight_decay is not None else []
            found["_".join(words) or "base"] = _lr(component) * lr_scale
    first, *others = found.values()
    return found if any(other != first for other in others) else {"lr": first}


def _lr(component: Optimizer) -> float:
    lr: float = component.lr  # type: ignore[attr-defined]
    return float(lr)


def _build(
    component: Optimizer,
    by_setting: Mapping[Setting, Sequence[str]],
    named: Mapping[str, nn.Parameter],
) -> torch.optim.Optimizer:
    settings: list[dict[str, object]] = []
    for (lr_scale, weight_decay), names in by_setting.items():
        by_mesh: dict[object, list[nn.Parameter]] = {}  # an operation accepts only DTensors of one mesh
        for name in names:
            by_mesh.setdefault(getattr(named[name], "device_mesh", None), []).append(named[name])
        for parameters in by_mesh.values():
            group: dict[str, object] = {"params": parameters, "lr": _lr(component) * lr_scale}
            if weight_decay is not None:
                group["weight_decay"] = weight_decay
            settings.append(group)
    return component.build(settings)
