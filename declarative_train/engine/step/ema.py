"""`training.ema`: for each trained parameter, a moving average of its values after the optimizer's steps.

An average is sharded as its parameter is, so that no rank sends anything for it. Polyak and Juditsky, 1992; as a
moving average Tarvainen and Valpola, https://arxiv.org/abs/1703.01780. The plan decides the decay of each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


class Average:
    """Moving averages, `tensors` by the parameters' names; they begin with the parameters' values."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], model: nn.Module) -> None:
        self.tensors = {name: item.detach().clone() for name, item in parameters.items()}
        self._held = [_local(item.detach()) for item in parameters.values()]
        self._own = [_local(item) for item in self.tensors.values()]
        self._model = model

    @torch.no_grad()
    def update(self, decay: float, finite: torch.Tensor | None) -> None:
        """Move each average by 1 - `decay` of the way to its parameter.

        `finite` is a bool tensor that the host does not wait for: where it is false the optimizer skipped the step,
        and the averages stay.
        """
        if not self._own:  # a stage that trains nothing
            return
        if finite is None:
            torch._foreach_lerp_(self._own, self._held, 1 - decay)
            return
        for own, held in zip(self._own, self._held, strict=True):
            own.lerp_(held, (finite * (1 - decay)).to(own.device, own.dtype))

    @torch.no_grad()
    def exchange(self) -> None:
        """Averages and parameters change places, to the bit: before an evaluation, and after it."""
        for own, held in zip(self._own, self._held, strict=True):
            kept = held.clone()
            held.copy_(own)
            own.copy_(kept)
        self._forget_gathered()

    @torch.no_grad()
    def begin_again(self) -> None:
        """From the parameters as they are now."""
        for own, held in zip(self._own, self._held, strict=True):
            own.copy_(held)

    def _forget_gathered(self) -> None:
        """What fully_shard keeps whole after a forward is of the values before."""
        for part in self._model.modules():
            reshard: Any = getattr(type(part), "reshard", None)
            if callable(reshard):
                reshard(part)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Of a DTensor what this rank holds."""
    found: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return found
