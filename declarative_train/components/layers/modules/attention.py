"""Multi-head attention, computed by torch's `scaled_dot_product_attention`. It supports fewer key heads
than query heads, rotary positions and masks.

B batch (N sequences, if there are several dimensions before the time), T queries, S keys, D width, H
heads, G key heads, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.context import ContextRanks
from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.divided_linear import divide_linear
from declarative_train.components.layers.modules.documents import LEAST, WIDEST, DocumentTable, attend_documents, serves
from declarative_train.components.layers.modules.norms import RmsNormModule
from declarative_train.components.layers.modules.ring import RingAttention
from declarative_train.components.layers.modules.rotary import Angles, RotaryTables, rotate
from declarative_train.components.layers.modules.sequences import as_rows, mask_as_rows, restore_dims


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes and options of the heads of an attention layer.

    rotary                  angles of rotary positions; None: no rotary positions
    qk_norm                 normalise queries and keys by their root mean square
    qk_norm_zero_centered   the learned scale of this norm is 1 + the parameter
    fused                   queries, keys and values come from one matrix, `qkv`
    window                  most keys that a query sees: its own position and those just before
    scale                   factor on products of queries and keys; None: 1 / sqrt(head_width)
    softcap                 limit c: a product p becomes c * tanh(p / c)
    sinks                   each softmax has one more logit, a learned number, whose weight is dropped
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    dropout: float = 0.0
    rotary: Angles | None = None
    qk_norm: bool = False
    qk_norm_eps: float = 1e-6
    qk_norm_zero_centered: bool = False
    bias: bool = True
    out_bias: bool = True
    fused: bool = True
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def query_width(self) -> int:
        return self.num_heads * self.head_width

    @property
    def kv_width(self) -> int:
        return self.num_kv_heads * self.head_width

    @property
    def needs_weights(self) -> bool:
        """True if `softcap` or `sinks` is set. The attention weights must then be computed as a tensor, because torch's
        fused kernels do not have these options."""
        return self.softcap is not None or self.sinks


class SelfAttentionModule(nn.Module):
    """Module of the layer `self_attention`, from x (B, ..., T, D) to (B, ..., T, D).

    `mask`           bool (B, ..., T) or (B, ..., T, T), True where a position may be seen; None: everywhere
    `segments`       integers (B, ..., T); a position sees only those with the same number
    `positions`      integers (B, ..., T) for the rotary angles; None: 0 to T - 1
    `num_positions`  one more than the largest number in `positions`
    """

    def __init__(self, width: int, heads: Heads, causal: bool, dtype: torch.dtype, num_positions: int = 0) -> None:
        super().__init__()
        self.heads, self.num_positions = heads, num_positions
        self.causal = causal
        widths = (heads.query_width, heads.kv_width, heads.kv_width)
        if heads.fused:
            self.qkv = nn.Linear(width, sum(widths), heads.bias, dtype=dtype)
        else:
            self.query, self.key, self.value = (nn.Linear(width, out, heads.bias, dtype=dtype) for out in widths)
        if heads.qk_norm:
            self.query_norm, self.key_norm = _norms_of(heads, dtype)
        self.out = nn.Linear(heads.query_width, width, heads.out_bias, dtype=dtype)
        self.sinks = nn.Parameter(torch.empty(heads.num_heads, dtype=dtype)) if heads.sinks else None
        self.tables = RotaryTables()
        self.documents = DocumentTable()
        self.ranks: TensorRanks | None = None
        self.context: ContextRanks | None = None

    def divide(self, ranks: TensorRanks) -> None:
        """Make the module compute only this rank's heads. The caller replaces each parameter by the part that belongs
        to these heads.
        """
        _divide(self, ranks)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        x = x if self.ranks is None else self.ranks.enter(x)
        dropout = self.heads.dropout if self.training else 0.0
        if self.context is not None:
            y = self._attend_across(self.context, x, mask, segments, positions, dropout)
            return self.out(_merge_heads(y))  # type: ignore[no-any-return]
        q_NHTK, k_NGTK, v_NGTK = self.project(as_rows(x), positions=mask_as_rows(positions, x))
        seen, parts = mask_as_rows(mask, x), mask_as_rows(segments, x)
        by_document = parts is not None and seen is None and serves(q_NHTK, dropout, self.heads.needs_weights)
        found = self.documents(parts) if by_document and parts is not None else None
        if found is not None:
            y = attend_documents(q_NHTK, k_NGTK, v_NGTK, found, self.causal, self.heads.window, self.heads.scale)
        elif parts is not None:
            allowed = within_segments(parts, seen, self.causal, self.heads.window)
            y = attend_allowed(q_NHTK, k_NGTK, v_NGTK, allowed, dropout, seen is None, self.heads, self.sinks)
        else:
            y = attend(q_NHTK, k_NGTK, v_NGTK, seen, self.causal, dropout, self.heads, self.sinks)
        return restore_dims(self.out(_merge_heads(y)), x)

    def _attend_across(
        self,
        context: ContextRanks,
        x: Tensor,
        mask: Tensor | None,
        segments: Tensor | None,
        positions: Tensor | None,
        dropout: float,
    ) -> Tensor:
        """Return the attention output (B, H, T / N, K) for the positions of this rank. They attend to the positions of
        all N ranks of the `context` axis.
        """
        length, places = self.num_positions, positions
        if places is None:
            length, places = context.whole_length(x), context.places(x.shape[1], x.device)[None]
        q_BHTK, k_BGTK, v_BGTK = self.project(x, positions=places, length=length)
        seen = None if mask is None else context.gather_values(mask)
        parts = None if segments is None else context.gather_values(segments)
        if context.in_ring and not dropout:
            heads = self.heads
            scale = heads.head_width**-0.5 if heads.scale is None else heads.scale
            ring = RingAttention(context, self.causal, heads.window, scale, heads.softcap, parts, seen)
            return ring.attend(q_BHTK, k_BGTK, v_BGTK, self.sinks)
        both = context.gather(torch.cat([k_BGTK, v_BGTK], -1).transpose(1, 2)).transpose(1, 2)
        k_BGSK, v_BGSK = both.chunk(2, -1)
        found, c, window = [], x.shape[1] // 2, self.heads.window
        for at, first in enumerate(context.firsts(c)):
            own = slice(at * c, (at + 1) * c)
            end = first + c if self.causal else context.whole_length(x)
            allowed = visible_keys(c, end, window, x.device)[None, None] if self.causal else None
            if segments is not None and parts is not None:
                same = (segments[:, own, None] == parts[:, None, :end])[:, None]
                allowed = same if allowed is None else allowed & same
            if seen is not None:
                allowed = seen[:, None, None, :end] if allowed is None else allowed & seen[:, None, None, :end]
            q, k, v = q_BHTK[:, :, own], k_BGSK[:, :, :end], v_BGSK[:, :, :end]
            found.append(attend_allowed(q, k, v, allowed, dropout, seen is None, self.heads, self.sinks))
        return torch.cat(found, 2)

    def project(
        self, x: Tensor, start: int = 0, positions: Tensor | None = None, length: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (B, H, T, K), keys (B, G, T, K) and values (B, G, T, K), computed from x (B, T, D).

        `positions`  (B, T), position of each token, for its rotary angle; None: `start`, `start` + 1, ...
        `length`     length of the table of rotary angles, larger than all positions; None: chosen here
        """
        heads = self.heads
        if heads.fused:
            q, k, v = self.qkv(x).split([heads.query_width, heads.kv_width, heads.kv_width], dim=-1)
        else:
            q, k, v = self.query(x), self.key(x), self.value(x)
        q_BHTK, k_BGTK, v_BGTK = (_by_head(part, heads.head_width) for part in (q, k, v))
        if heads.qk_norm:
            q_BHTK, k_BGTK = self.query_norm(q_BHTK), self.key_norm(k_BGTK)
        if heads.rotary is not None:
            if length is None:
                length = start + x.shape[1] if positions is None else self.num_positions
            cos_TK, sin_TK = self.tables(length, heads.head_width, heads.rotary, q_BHTK)
            if positions is not None:
                cos_TK, sin_TK = (part[positions.long()].unsqueeze(1) for part in (cos_TK, sin_TK))  # (B, 1, T, K / 2)
            elif start:
                cos_TK, sin_TK = cos_TK[start:], sin_TK[start:]
            q_BHTK, k_BGTK = rotate(q_BHTK, cos_TK, sin_TK), rotate(k_BGTK, cos_TK, sin_TK)
        return q_BHTK, k_BGTK, v_BGTK

    def attend_last(self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor) -> Tensor:
        """Return the layer's output (B, T, D) for the last T of S positions, given their queries and the keys and
        values of all S positions. The layer must be causal. The generation of text calls this method, with stored keys
        and values of earlier tokens.
        """
        T, S = q_BHTK.shape[2], k_BGSK.shape[2]
        seen = visible_keys(T, S, self.heads.window, q_BHTK.device)
        y = attend(q_BHTK, k_BGSK, v_BGSK, seen[None], False, 0.0, self.heads, self.sinks)
        return self.out(_merge_heads(y))  # type: ignore[no-any-return]


class CrossAttentionModule(nn.Module):
    """Module of the layer `cross_attention`, from query (B, ..., T, D) and context (B, ..., S, E) to (B, ..., T, D).
    `mask`: bool, (B, ..., S) or (B, ..., T, S), True where a position of the context may be seen; None means
    everywhere.
    """

    def __init__(self, width: int, context_width: int, heads: Heads, dtype: torch.dtype) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, heads.query_width, heads.bias, dtype=dtype)
        if heads.fused:
            self.key_value = nn.Linear(context_width, 2 * heads.kv_width, heads.bias, dtype=dtype)
        else:
            self.key, self.value = (nn.Linear(context_width, heads.kv_width, heads.bias, dtype=dtype) for _ in range(2))
        if heads.qk_norm:
            self.query_norm, self.key_norm = _norms_of(heads, dtype)
        self.out = nn.Linear(heads.query_width, width, heads.out_bias, dtype=dtype)
        self.ranks: TensorRanks | None = None

    def divide(self, ranks: TensorRanks) -> None:
        """Make the module compute only this rank's heads. The caller replaces each parameter by the part that belongs
        to these heads.
        """
        _divide(self, ranks)

    def forward(self, query: Tensor, context: Tensor, mask: Tensor | None = None) -> Tensor:
        heads = self.heads
        if self.ranks is not None:
            query, context = self.ranks.enter(query), self.ranks.enter(context)
        q, others = self.query(as_rows(query)), as_rows(context)
        if heads.fused:
            k, v = self.key_value(others).chunk(2, dim=-1)
        else:
            k, v = self.key(others), self.value(others)
        q_BHTK, k_BGSK, v_BGSK = (_by_head(part, heads.head_width) for part in (q, k, v))
        if heads.qk_norm:
            q_BHTK, k_BGSK = self.query_norm(q_BHTK), self.key_norm(k_BGSK)
        dropout = heads.dropout if self.training else 0.0
        y = attend(q_BHTK, k_BGSK, v_BGSK, mask_as_rows(mask, query), False, dropout, heads)
        return restore_dims(self.out(_merge_heads(y)), query)


def _divide(attention: SelfAttentionModule | CrossAttentionModule, ranks: TensorRanks) -> None:
    heads = attention.heads
    number, kv_number = heads.num_heads // ranks.size, heads.num_kv_heads // ranks.size
    attention.heads = replace(heads, num_heads=number, num_kv_heads=kv_number)
    for name, part in attention.named_children():
        if isinstance(part, nn.Linear):
            setattr(attention, name, divide_linear(part, "rows" if name == "out" else "heads", ranks))
    attention.ranks = ranks


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    mask: Tensor | None,
    causal: bool,
    dropout: float,
    heads: Heads,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return the attention output (B, H, T, K). `mask`: (B, S) or (B, T, S), True where a query may see a key; None:
    everywhere. The output of a query that may see no key is 0, without gradient. `heads.window` is used only if
    `causal`. `sinks_H`: a learned number for each head (`Heads.sinks`)."""
    T, window = q_BHTK.shape[2], heads.window if causal else None
    if mask is None and causal and ((window is not None and window < T) or heads.needs_weights):
        mask, causal = visible_keys(T, T, window, q_BHTK.device)[None], False
    shared = q_BHTK.shape[1] // k_BGSK.shape[1]
    if (
        shared > 1
        and mask is None
        and not heads.needs_weights
        and takes_fewer_keys(q_BHTK, k_BGSK, v_BGSK, causal, dropout)
    ):
        return F.scaled_dot_product_attention(
            q_BHTK, k_BGSK, v_BGSK, dropout_p=dropout, is_causal=causal, scale=heads.scale, enable_gqa=True
        )
    if mask is None:
        return _weigh_values(q_BHTK, k_BGSK, v_BGSK, None, causal, dropout, heads, sinks_H)
    allowed = mask[:, None, None, :] if mask.dim() == 2 else mask[:, None]
    if causal:
        allowed = allowed & visible_keys(T, T, window, mask.device)
    return attend_allowed(q_BHTK, k_BGSK, v_BGSK, allowed, dropout, False, heads, sinks_H)


def attend_allowed(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    dropout: float,
    every: bool,
    heads: Heads,
    sinks_H: Tensor | None = None,
) -> Tensor:
    """Return the attention output (B, H, T, K). A query that may see no key gives 0. `allowed`: (B, 1, 1, S) or (B, 1,
    T, S), True where a query may see a key; None means everywhere. `every`: True if the caller knows that each query
    may see at least one key. Then the function does not look for queries without a key.
    """
    if every or allowed is None:
        return _weigh_values(q_BHTK, k_BGSK, v_BGSK, allowed, False, dropout, heads, sinks_H)
    sees = allowed.any(-1, keepdim=True)
    return _weigh_values(q_BHTK, k_BGSK, v_BGSK, allowed | ~sees, False, dropout, heads, sinks_H).masked_fill(~sees, 0)


def _weigh_values(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    allowed: Tensor | None,
    causal: bool,
    dropout: float,
    heads: Heads,
    sinks_H: Tensor | None,
) -> Tensor:
    """Return the attention output (B, H, T, K): the softmax of the products of queries and keys, times the values.
    With `softcap` or `sinks` no fused kernel is used. Then `causal` has no effect, and `allowed` must contain the
    causal mask.
    """
    k_BHSK, v_BHSK = _repeat_keys(k_BGSK, v_BGSK, q_BHTK.shape[1] // k_BGSK.shape[1])
    if not heads.needs_weights:
        return F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=allowed, dropout_p=dropout, is_causal=causal, scale=heads.scale
        )
    products = (q_BHTK @ k_BHSK.mT).to(torch.promote_types(q_BHTK.dtype, torch.float32))
    products = products * (heads.head_width**-0.5 if heads.scale is None else heads.scale)
    if heads.softcap is not None:
        products = heads.softcap * torch.tanh(products / heads.softcap)
    if allowed is not None:
        products = products.masked_fill(~allowed, float("-inf"))
    if sinks_H is None:
        weights = products.softmax(-1)
    else:
        sinks = sinks_H.to(products.dtype).view(-1, 1, 1).expand(*products.shape[:-1], 1)
        weights = torch.cat([products, sinks], -1).softmax(-1)[..., :-1]
    return F.dropout(weights, dropout).to(v_BHSK.dtype) @ v_BHSK


def within_segments(segments: Tensor, mask: Tensor | None, causal: bool, window: int | None) -> Tensor:
    """Return a mask (B, 1, T, T), True where a query may see a key. Query and key must be in the same segment, and
    `mask`, the causal order and the window must allow the pair. `segments` (B, T): the id of the segment of each
    position.
    """
    T = segments.shape[1]
    allowed = (segments[:, :, None] == segments[:, None, :])[:, None]
    if causal:
        allowed = allowed & visible_keys(T, T, window, segments.device)
    if mask is not None:
        allowed = allowed & (mask[:, None, None, :] if mask.dim() == 2 else mask[:, None])
    return allowed


def _repeat_keys(k_BGSK: Tensor, v_BGSK: Tensor, shared: int) -> tuple[Tensor, Tensor]:
    """Return keys and values with each head repeated `shared` times, once for each query head that uses it. torch also
    has a kernel that needs no repeated heads (`enable_gqa`), but it is slow on the CPU and with a mask.
    """
    if shared == 1:
        return k_BGSK, v_BGSK
    return k_BGSK.repeat_interleave(shared, dim=1), v_BGSK.repeat_interleave(shared, dim=1)


def visible_keys(T: int, S: int, window: int | None, device: torch.device) -> Tensor:
    """Return a causal mask (T, S), True where a query may see a key. The keys have positions 0 to S - 1, and the
    queries have the last T of these positions. A query may see the key of its own position and those before it. With
    `window`, it sees only the last `window` of these.
    """
    seen = torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)
    return seen if window is None else seen.triu(S - T - window + 1)


def takes_fewer_keys(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, causal: bool, dropout: float) -> bool:
    """Return whether torch's flash attention, which accepts fewer key heads than query heads, supports these tensors.
    If not, the caller must repeat keys and values."""
    if not q_BHTK.is_cuda:
        return False
    if torch.compiler.is_compiling():  # asking torch below would break the graph at every layer
        half = q_BHTK.dtype in (torch.bfloat16, torch.float16)
        return half and q_BHTK.shape[-1] <= WIDEST and has_flash(q_BHTK.device.index)
    asked = torch.backends.cuda.SDPAParams(q_BHTK, k_BGSK, v_BGSK, None, dropout, causal, True)
    return torch.backends.cuda.can_use_flash_attention(asked)


def has_flash(device: int) -> bool:
    """Return whether flash attention is enabled and the GPU with index `device` supports it. torch.compile calls this
    function while it traces, and treats the result as a constant (`engine/step/compiled.py`).
    """
    enabled: bool = torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
    return enabled and torch.cuda.get_device_capability(device) >= LEAST


def share_tables(model: nn.Module) -> None:
    tables, documents = RotaryTables(), DocumentTable()
    for part in model.modules():
        if isinstance(getattr(part, "tables", None), RotaryTables):
            part.tables = tables  # type: ignore[assignment]
        if isinstance(part, SelfAttentionModule):
            part.documents = documents


def _norms_of(heads: Heads, dtype: torch.dtype) -> tuple[RmsNormModule, RmsNormModule]:
    """Return two RMS norms, for queries and for keys, with weights of the given dtype."""
    norm = partial(RmsNormModule, (heads.head_width,), heads.qk_norm_eps, True, dtype, heads.qk_norm_zero_centered)
    return norm(), norm()


def _by_head(x: Tensor, K: int) -> Tensor:
    """Divide the features of `x` into heads: (B, T, H * K) becomes (B, H, T, K)."""
    return x.view(*x.shape[:-1], -1, K).transpose(1, 2)


def _merge_heads(x_BHTK: Tensor) -> Tensor:
    return x_BHTK.transpose(1, 2).flatten(2)
