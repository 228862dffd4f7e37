"""Shards of packed weights, which are integers, on torch 2.11.

That `fully_shard` sets requires_grad on each shard before checking the parameter, which integers cannot have, and casts
everything that it gathers to the dtype of the forward. Newer versions of torch do neither; nothing changes for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.fsdp._fully_shard import _fsdp_param, _fsdp_param_group


class _PatchedNN:
    """Module `torch.nn` whose integer Parameters require no gradient."""

    def __getattr__(self, name: str) -> Any:
        return getattr(nn, name)

    @staticmethod
    def Parameter(data: torch.Tensor, requires_grad: bool = True) -> nn.Parameter:  # noqa: N802 (torch's name)
        return nn.Parameter(data, requires_grad and data.dtype.is_floating_point)


class _IntegerParam(_fsdp_param.FSDPParam):
    """Sharded parameter that gathers integers as integers."""

    def init_dtype_attrs(self, mp_policy: MixedPrecisionPolicy) -> None:
        super().init_dtype_attrs(mp_policy)
        if not self.orig_dtype.is_floating_point:
            self.param_dtype = None


@contextmanager
def keep_integers(model: nn.Module) -> Iterator[None]:
    """Patch `fully_shard` while the parameters of `model` are sharded."""
    if all(parameter.dtype.is_floating_point for parameter in model.parameters()):
        yield
        return
    shards: Any = _fsdp_param
    groups: Any = _fsdp_param_group
    before = shards.nn, groups.FSDPParam
    shards.nn, groups.FSDPParam = _PatchedNN(), _IntegerParam
    try:
        yield
    finally:
        shards.nn, groups.FSDPParam = before
