"""Selective activation checkpointing: results that are slow to recompute are kept, all others are recomputed in the
backward.

By default the kept results are those of attention, and those of every second matrix product or convolution, beginning
with the first. Recomputing the other products and convolutions costs about as much as recomputing everything else.
torchtitan's option "op" does the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_aten: Any = torch.ops.aten
PRODUCTS = frozenset(
    [_aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.linear.default, _aten.convolution.default]
)
ATTENTION = frozenset(
    found.default
    for name in (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    if (found := getattr(_aten, name, None)) is not None
)
VARLEN = "torch_attn._varlen_attn.default"  # torch defines it on first use
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


class Policy:
    """Policy for torch's selective checkpointing: it says for each operation whether its result is kept or recomputed.
    `keep`: kinds of results that are kept, as in `training.activation_checkpointing.keep`. To keep every second matrix
    product, it counts the products. The forward and its recomputation have separate counters, so that the same products
    are chosen in both."""

    def __init__(self, keep: frozenset[str]) -> None:
        self._kept = ATTENTION if "attention" in keep else frozenset()
        self._step = 1 if "products" in keep else 2 if "every_second_product" in keep else 0
        self._counts = {False: 0, True: 0}

    def __call__(self, context: Any, operation: Any, *inputs: Any, **more: Any) -> CheckpointPolicy:
        if operation in self._kept or (self._kept and str(operation) == VARLEN):
            return CheckpointPolicy.MUST_SAVE
        if not self._step or operation not in PRODUCTS:
            return CheckpointPolicy.PREFER_RECOMPUTE
        again = bool(context.is_recompute)
        self._counts[again] += 1
        is_kept = (self._counts[again] - 1) % self._step == 0
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def make_contexts(keep: frozenset[str], others: Callable[[], Contexts] | None) -> Contexts:
    """Return a pair of context managers, for the forward and for the recomputation, as the argument `context_fn` of
    `torch.utils.checkpoint.checkpoint` must return it. `keep`: kinds of results that are kept instead of recomputed.
    `others`: function that returns another pair, which is entered first; None: there is none."""
    mine: Contexts = create_selective_checkpoint_contexts(Policy(keep))  # type: ignore[no-untyped-call]
    if others is None:
        return mine
    return tuple(_enter_both(*pair) for pair in zip(others(), mine, strict=True))  # type: ignore[return-value]


@contextmanager
def _enter_both(one: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(one)
        stack.enter_context(other)
        yield
