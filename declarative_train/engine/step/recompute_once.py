"""Activation checkpointing for a backward that is divided into several calls to autograd, as in zero-bubble pipelines.

There, one call computes the gradients of a stage's inputs, and one call those of each group of its weights. torch's own
checkpointing would recompute a unit in each of these calls. Here a unit is recomputed once, when the first of its saved
tensors is used. Each tensor is freed together with the autograd graph that refers to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from weakref import ref

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


class _Saved:
    """Placeholder for a tensor that autograd saves in the forward. `value`: the tensor, once it is recomputed in the
    backward. `again`: function that recomputes all tensors that the forward saved."""

    __slots__ = ("__weakref__", "again", "value")

    def __init__(self, again: Callable[[], None]) -> None:
        self.again = again
        self.value: torch.Tensor | None = None


class _AllRecomputedError(Exception):
    """Exception that ends a recomputation when all saved tensors have been recomputed."""


def checkpoint_once(
    forward: Callable[..., Any], inputs: tuple[Any, ...], *, draws: bool, contexts: Callable[[], Contexts] | None
) -> Any:
    """Run `forward(*inputs)` without keeping its activations, and recompute them once in the backward. Apart from this
    it works like `torch.utils.checkpoint.checkpoint`. `draws`: the forward draws random numbers. `contexts`: function
    that returns a context manager for the forward and one for the recomputation."""
    saved: list[ref[_Saved]] = []
    of_forward, of_recomputation = (nullcontext(), nullcontext()) if contexts is None else contexts()
    surroundings = _capture_state(inputs, draws=draws)

    def again() -> None:
        left = iter(saved)
        number = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal number
            place = next(left, None)
            if place is None:
                raise RuntimeError("a recomputed unit saved more tensors than its forward")
            number += 1
            holder = place()
            value = tensor.detach() if tensor.requires_grad else tensor
            if holder is not None:
                holder.value = value
            if number == len(saved):
                raise _AllRecomputedError
            return value

        with surroundings(), of_recomputation, torch.enable_grad(), saved_tensors_hooks(keep, lambda value: value):
            try:
                forward(*inputs)
            except _AllRecomputedError:
                return
        raise RuntimeError(f"a recomputed unit saved {number} tensors, but {len(saved)} in its forward")

    def pack(_: torch.Tensor) -> _Saved:
        holder = _Saved(again)
        saved.append(ref(holder))
        return holder

    def unpack(holder: _Saved) -> torch.Tensor:
        if holder.value is None:
            holder.again()
        assert holder.value is not None
        return holder.value

    with of_forward, saved_tensors_hooks(pack, unpack):
        return forward(*inputs)


def _capture_state(inputs: tuple[Any, ...], *, draws: bool) -> Callable[[], AbstractContextManager[None]]:
    """Record the current autocast settings and, with `draws`, the states of the random generators of the CPU and of the
    devices of `inputs`. Return a function that returns a context manager, within which these settings and states apply
    again."""
    kinds = {"cpu", *(each.device.type for each in inputs if isinstance(each, torch.Tensor))} - {"meta"}
    casts = {kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds}
    caches = torch.is_autocast_cache_enabled()
    states = (torch.get_rng_state(), *get_device_states(*inputs)) if draws else None

    @contextmanager
    def restore() -> Iterator[None]:
        with ExitStack() as stack:
            if states is not None:
                generator, devices, of_devices = states
                stack.enter_context(torch.random.fork_rng(devices, device_type=max(kinds - {"cpu"}, default="cuda")))
                torch.set_rng_state(generator)
                set_device_states(devices, of_devices)
            for kind, (enabled, dtype) in casts.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=caches))
            yield

    return restore
