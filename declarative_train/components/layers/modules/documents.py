"""Attention of packed documents by their lengths, without a mask of all pairs: torch's varlen attention, on GPUs that
have it. Elsewhere, and for what it cannot do, `attention.py` holds a mask.

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
WIDEST = 256  # head width of the kernels
LEAST = (8, 0)  # compute capability
_pretended_gpu = ContextVar("pretended_gpu", default=False)


@dataclass(frozen=True, slots=True)
class Documents:
    """Runs of equal numbers in segments (B, T). `starts`: (N + 1,) int32 in the B * T tokens; `longest` of them."""

    starts: Tensor
    longest: int


@lru_cache(maxsize=1)
def varlen() -> Any:
    """torch's function, or None where this version has none that takes a window."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return varlen_attn if {"window_size", "scale"} <= set(known) else None


def serves(q_BHTK: Tensor, dropout: float, softcap: float | None) -> bool:
    """Whether the kernel takes these queries: half precision on a GPU, nothing dropped or capped, not compiled."""
    if dropout or softcap is not None or torch.compiler.is_compiling() or varlen() is None:
        return False
    K = q_BHTK.shape[-1]
    return q_BHTK.dtype in _HALF and K % 8 == 0 and K <= WIDEST and has_kernel(q_BHTK)


def has_kernel(like: Tensor) -> bool:
    if is_pretended(like):
        return _pretended_gpu.get()
    return like.is_cuda and torch.cuda.get_device_capability(like.device) >= LEAST


@contextmanager
def as_on_a_gpu(is_gpu: bool) -> Iterator[None]:
    """Tensors without values, which are none of a device, stand for those of a GPU."""
    token = _pretended_gpu.set(is_gpu)
    try:
        yield
    finally:
        _pretended_gpu.reset(token)


def is_pretended(tensor: Tensor) -> bool:
    """A tensor without values, by which memory is reckoned. Their module is slow to import."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


class DocumentTable:
    """The documents of a batch are looked up once for all layers of a model: the host waits for their number."""

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Documents | None] | None = None

    def __call__(self, segments: Tensor) -> Documents | None:
        """None where a number comes again behind another one: a mask says it."""
        kept = self._kept
        if kept is None or kept[0] is not segments:
            self._kept = kept = segments, documents(segments)
        return kept[1]

    def __deepcopy__(self, memo: dict[int, object]) -> DocumentTable:
        return DocumentTable()


def documents(segments: Tensor) -> Documents | None:
    """Of segments (B, T)."""
    B, T = segments.shape
    if is_pretended(segments):  # one in each row: how many there are is no matter of memory
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
    """(B, H, T, K): each document by itself. `window` of a causal layer."""
    B, H, T, K = q_BHTK.shape
    shared = H // k_BGTK.shape[1]
    if shared > 1:  # not every backend takes fewer
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
