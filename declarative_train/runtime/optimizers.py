"""All update rules of a model behind one face: groups by (optimizer, lr_scale, weight_decay), one lr factor for all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from declarative_train.components.component import Optimizer
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.runtime.read_component import read_component

if TYPE_CHECKING:
    from declarative_train.plan.plan import ParameterPlan


@dataclass(slots=True)
class Group:
    """One param group: its name in the logs, its lr before the schedule, torch's own dict."""

    name: str
    base_lr: float
    live: dict[str, Any]


class Optimizers:
    """What the loop and the checkpoint need of `torch.optim.Optimizer`, over several of them.

    `parameters` are those that are updated, by name; a frozen one is not among them.
    """

    def __init__(
        self, parameters: dict[str, nn.Parameter], parts: Sequence[torch.optim.Optimizer], groups: Sequence[Group]
    ) -> None:
        self.parameters = parameters
        self.groups = tuple(groups)
        self._parts = tuple(parts)
        self._tensors = tuple(parameters.values())
        self._factor = 1.0

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
        """By group for the logs; groups with the same lr are one, and one alone is called `lr`."""
        named = {group.name: float(group.live["lr"]) for group in self.groups}
        return named if len(set(named.values())) > 1 else {"lr": next(iter(named.values()))}

    def step(self) -> None:
        for part in self._parts:
            part.step()

    def step_if(self, finite: torch.Tensor) -> None:
        """Step unless `finite` (a bool tensor) is false. On CUDA the fused rules look at it on the device; the others
        make the host wait for it."""
        fused = finite.device.type == "cuda" and all(
            getattr(part, "_step_supports_amp_scaling", False) for part in self._parts
        )
        if not fused:
            if bool(finite):
                self.step()
            return
        found_inf = (~finite).float()
        for part in self._parts:
            part.found_inf = found_inf  # type: ignore[attr-defined]
            part.grad_scale = None  # type: ignore[attr-defined]
            part.step()

    def state(self) -> Iterator[tuple[str, str, Any]]:
        """(parameter name, entry, value) of everything that the rules remember."""
        for name, parameter in self.parameters.items():
            for part in self._parts:
                for entry, value in part.state.get(parameter, {}).items():
                    yield name, entry, value

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """`state[parameter name][entry]`; parameters without an entry start anew."""
        for part in self._parts:
            for group in part.param_groups:
                for parameter in group["params"]:
                    found = state.get(self._name(parameter))
                    if found:
                        part.state[parameter] = {
                            entry: _placed(entry, value, parameter, group) for entry, value in found.items()
                        }

    def _name(self, parameter: nn.Parameter) -> str:
        return next(name for name, other in self.parameters.items() if other is parameter)


def _placed(entry: str, value: Any, parameter: nn.Parameter, group: Mapping[str, Any]) -> Any:
    """A step counter lives where torch's own `load_state_dict` would put it: with the parameter when the kernel reads
    it there, else on the CPU."""
    if entry != "step" or not isinstance(value, torch.Tensor):
        return value
    on_device = group.get("fused") or group.get("capturable")
    return value.to(parameter.device if on_device else "cpu")


def build_optimizers(
    plans: Sequence[ParameterPlan],
    optimizer: Mapping[str, object],
    named: Mapping[str, nn.Parameter],
    *,
    functional: bool | None = None,
) -> Optimizers:
    """`named` are the parameters that this rank holds; `plans` say how each is updated. `functional`: use the forms
    that cost less than torch's objects and do not import `torch._dynamo`, where the rule has one; unless told, for
    whole tensors on CPU."""
    if functional is None:
        functional = all(type(item) is nn.Parameter and item.device.type == "cpu" for item in named.values())
    keyed: dict[str, tuple[Optimizer, dict[tuple[float, float | None], list[str]]]] = {}
    for parameter in plans:
        if parameter.frozen or parameter.tie is not None or parameter.name not in named:
            continue
        fields = parameter.optimizer or optimizer
        key = json.dumps(fields, sort_keys=True)
        if key not in keyed:
            keyed[key] = read_component(OPTIMIZERS, fields), {}
        keyed[key][1].setdefault((parameter.lr_scale, parameter.weight_decay), []).append(parameter.name)
    parts: list[torch.optim.Optimizer] = []
    groups: list[Group] = []
    for component, by_setting in keyed.values():
        part = _build(component, by_setting, named, functional)
        parts.append(part)
        for (lr_scale, weight_decay), live in zip(by_setting, part.param_groups, strict=True):
            groups.append(Group(_group_name(component, lr_scale, weight_decay, keyed), float(live["lr"]), live))
    updated = {name: named[name] for _, sets in keyed.values() for names in sets.values() for name in names}
    ordered = {name: updated[name] for name in named if name in updated}
    return Optimizers(ordered, parts, groups)


def _build(
    component: Optimizer,
    by_setting: Mapping[tuple[float, float | None], Sequence[str]],
    named: Mapping[str, nn.Parameter],
    functional: bool,
) -> torch.optim.Optimizer:
    lr = float(component.lr)  # type: ignore[attr-defined]
    settings: list[dict[str, object]] = []
    for (lr_scale, weight_decay), names in by_setting.items():
        group: dict[str, object] = {"params": [named[name] for name in names], "lr": lr * lr_scale}
        if weight_decay is not None:
            group["weight_decay"] = weight_decay
        settings.append(group)
    if functional and (part := component.build_functional([dict(group) for group in settings])) is not None:
        return part
    return component.build(settings)


def _group_name(component: Optimizer, lr_scale: float, weight_decay: float | None, keyed: Mapping[str, Any]) -> str:
    words = [component.type] if len(keyed) > 1 else []
    words += [f"scale_{lr_scale:g}"] if lr_scale != 1 else []
    words += [f"decay_{weight_decay:g}"] if weight_decay is not None else []
    return "_".join(words) or "base"
