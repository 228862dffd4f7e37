"""Moving average of the trained parameters (`training.ema`), updated after each optimizer step.

The averages are sharded like the parameters, so their update needs no communication. The plan has the decay for each
step. Averaging is described by Polyak and Juditsky, 1992; as a moving average by Tarvainen and Valpola,
https://arxiv.org/abs/1703.01780."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from declarative_train.engine.collectives import local_part


class Average:
    """Moving averages of parameters. `tensors`: a dict from the name of each parameter to its average, which starts at
    the parameter's value."""

    def __init__(self, parameters: Mapping[str, nn.Parameter], model: nn.Module) -> None:
        self.tensors = {name: item.detach().clone() for name, item in parameters.items()}
        self._held = [local_part(item.detach()) for item in parameters.values()]
        self._own = [local_part(item) for item in self.tensors.values()]
        self._model = model

    @torch.no_grad()
    def update(self, decay: float, finite: torch.Tensor | None) -> None:
        """Move each average towards its parameter by 1 - `decay` of the difference. `finite`: bool tensor on the
        device; if it is false, the optimizer skipped the step, and the averages stay unchanged. None: no step is
        skipped."""
        if not self._own:  # a stage that trains nothing
            return
        if finite is None:
            torch._foreach_lerp_(self._own, self._held, 1 - decay)
            return
        for own, held in zip(self._own, self._held, strict=True):
            own.lerp_(held, (finite * (1 - decay)).to(own.device, own.dtype))

    @torch.no_grad()
    def exchange(self) -> None:
        """Swap the averages with the parameters, without rounding. Call it before an evaluation and again after it."""
        for own, held in zip(self._own, self._held, strict=True):
            kept = held.clone()
            held.copy_(own)
            own.copy_(kept)
        forget_gathered(self._model)

    @torch.no_grad()
    def begin_again(self) -> None:
        """Set each average to the current value of its parameter."""
        for own, held in zip(self._own, self._held, strict=True):
            own.copy_(held)


def forget_gathered(model: nn.Module) -> None:
    """Free the whole parameters that fully_shard keeps after a forward. Call this after a change of the shards, because
    the whole parameters still have the old values."""
    for part in model.modules():
        reshard: Any = getattr(type(part), "reshard", None)
        if callable(reshard):
            reshard(part)
