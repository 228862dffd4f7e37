"""Optimizer of a plugin: a user's class that derives from `torch.optim.Optimizer`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, ClassVar

from pydantic import PrivateAttr

from declarative_train.components.component import Optimizer, ShapeError
from declarative_train.components.plugin_components import PluginComponent, describe_failure

if TYPE_CHECKING:
    import torch


class PluginOptimizer(PluginComponent, Optimizer):
    """Optimizer of a plugin. The user's class has `__init__(self, params, lr, ...)`, as in torch. If a step needs the
    whole parameter, not only this rank's shard of it, the class declares `takes_shards = False`. A recipe with fsdp is
    then an error.
    """

    takes_shards: ClassVar[bool] = True
    works_elementwise: ClassVar[bool] = False
    _known: dict[tuple[int, ...], int] = PrivateAttr(default_factory=dict)

    def check(self, parameters: Mapping[str, tuple[int, ...]], num_shards: int = 1) -> ShapeError | None:
        """Return an error if a step of the user's optimizer on a small matrix fails, else None. If the user's code may
        not run, no step is tried. The result does not depend on `parameters` and `num_shards`.
        """
        if not self.may_import:
            return None
        try:
            _state_of(self, (4, 3))
        except Exception as problem:  # report any exception of the user's code
            return describe_failure(self.type, problem)
        return None

    def build(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = self.make(groups)
        return made

    def num_state_elements(self, shape: tuple[int, ...]) -> int:
        """Return an estimate of how many elements of optimizer state a parameter of this shape has. The number is
        measured by a step on a smaller parameter with the same number of dimensions, and scaled to `shape`. If the
        user's code may not run, the estimate is two for each element of the parameter."""
        if not self.may_import:
            return 2 * prod(shape)
        small = tuple(min(size, 8) for size in shape)
        if small not in (known := self._known):
            known[small] = _state_of(self, small)
        return round(known[small] * prod(shape) / max(1, prod(small)))


def _state_of(optimizer: PluginOptimizer, shape: tuple[int, ...]) -> int:
    """Return how many elements of state the optimizer has for a parameter of this shape. One step is done to find out.
    Tensors without dimensions, such as step counters, are not counted.
    """
    import torch

    parameter = torch.nn.Parameter(torch.full(shape, 0.5))
    parameter.grad = torch.full(shape, 0.1)
    made = optimizer.build([{"params": [parameter], "lr": 1e-3}])
    made.step()
    state = made.state.get(parameter, {})
    return sum(value.numel() for value in state.values() if isinstance(value, torch.Tensor) and value.ndim)
