"""Attention within packed documents (several texts in one row) by torch's varlen attention.

This needs no mask for each pair of positions. It is used on GPUs that support it; on others `attention.py` uses a
mask.

B batch, T tokens, H heads, G key heads, K head width, N documents of all rows.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)
WIDEST = 256  # largest head width of the kernels
LEAST = (8, 0)  # smallest compute capability of the kernels
_pretended_gpu = ContextVar("pretended_gpu", default=False)


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents of a batch, whose rows are joined to one sequence of B * T tokens. `starts` (N + 1,) int32: the index
    of the first token of each document, then B * T. `longest`: length of the longest document.
    """

    starts: Tensor
    longest: int


@lru_cache(maxsize=1)
def varlen() -> Any:
    """Return torch's varlen attention function, or None if this version of torch lacks the function or its arguments
    `window_size` and `scale`.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "scale"} <= set(known) else None


def serves(q_BHTK: Tensor, dropout: float, needs_weights: bool) -> bool:
    """Return whether torch's varlen attention can be used for the queries `q_BHTK`. It needs a GPU, half precision, and
    a head width that the kernel supports. It cannot be used with dropout, under torch.compile, or if the layer needs
    the attention weights (`needs_weights`)."""
    if dropout or needs_weights or torch.compiler.is_compiling() or varlen() is None:
        return False
    K = q_BHTK.shape[-1]
    return q_BHTK.dtype in _HALF and K % 8 == 0 and K <= WIDEST and has_kernel(q_BHTK)


def has_kernel(like: Tensor) -> bool:
    if is_fake(like):
        return _pretended_gpu.get()
    return like.is_cuda and torch.cuda.get_device_capability(like.device) >= LEAST


@contextmanager
def treat_as_gpu(is_gpu: bool) -> Iterator[None]:
    """Make `has_kernel` return `is_gpu` for all fake tensors, within the `with` block. A fake tensor has no real
    device.
    """
    token = _pretended_gpu.set(is_gpu)
    try:
        yield
    finally:
        _pretended_gpu.reset(token)


def is_fake(tensor: Tensor) -> bool:
    """Return whether a tensor is a FakeTensor, torch's tensor without values, which the memory estimate uses. The
    class is looked up among the imported modules, because importing its module is slow.
    """
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


class DocumentTable:
    """Cache of the documents of the current batch, shared by all attention layers of a model. To find the documents,
    the host must wait for the device. With the cache it waits once per batch, not once per layer.
    """

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Documents | None] | None = None

    def __call__(self, segments: Tensor) -> Documents | None:
        """Return the documents of a batch, as `documents` does. They are computed only if `segments` is another tensor
        than in the last call."""
        kept = self._kept
        if kept is None or kept[0] is not segments:
            self._kept = kept = segments, documents(segments)
        return kept[1]

    def __deepcopy__(self, memo: dict[int, object]) -> DocumentTable:
        return DocumentTable()


def documents(segments: Tensor) -> Documents | None:
    """Return the documents of a batch for the varlen kernel. `segments` (B, T): for each token, the id of its document.
    Neighbouring tokens with equal ids are one document. Return None if an id occurs in two separate places of a row,
    because the kernel needs contiguous documents. Fake tensors have no values, so each of their rows counts as one
    document."""
    B, T = segments.shape
    if is_fake(segments):  # one per row: the number of documents does not change the memory
        return Documents(torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=segments.device), T)
    with torch.no_grad():
        begins = torch.ones_like(segments, dtype=torch.bool)
        begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
        in_order = segments.sort(dim=1).values
        num_different = (in_order[:, 1:] != in_order[:, :-1]).sum() + B
        starts = torch.cat([begins.flatten().nonzero().flatten(), begins.new_full((1,), B * T, dtype=torch.int64)])
        longest, different = torch.stack([starts.diff().max(), num_different]).tolist()
        return Documents(starts.to(torch.int32), longest) if different == len(starts) - 1 else None


def attend_documents(
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTK: Tensor,
    found: Documents,
    causal: bool,
    window: int | None,
    scale: float | None,
) -> Tensor:
    """Return the attention output (B, H, T, K), where each token attends only to tokens of its own document. `found`:
    the documents of the batch. `window` is used only if `causal`.
    """
    B, H, T, K = q_BHTK.shape
    shared = H // k_BGTK.shape[1]
    if shared > 1:  # not every backend takes fewer key heads
        k_BGTK, v_BGTK = (part.repeat_interleave(shared, dim=1) for part in (k_BGTK, v_BGTK))
    q, k, v = (part.transpose(1, 2).reshape(B * T, H, K) for part in (q_BHTK, k_BGTK, v_BGTK))
    before = -1 if window is None or not causal else window - 1
    y: Tensor = varlen()(
        q,
        k,
        v,
        found.starts,
        found.starts,
        found.longest,
        found.longest,
        scale=scale,
        window_size=(before, 0 if causal else -1),
    )
    return y.view(B, T, H, K).transpose(1, 2)
