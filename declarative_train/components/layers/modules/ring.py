"""Ring attention: each rank sends keys and values to the next rank of the `context` axis, so that no rank holds the
keys and values of all positions at once. The backward sends them around again, with their gradients.

Liu, Zaharia and Abbeel, Ring attention with blockwise transformers for near-infinite context, 2023. The softmax is
computed block by block as in Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.

B batch, T this rank's positions, H heads, G key heads, R query heads for each key head, C queries of a block, S keys of
a block, K head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from declarative_train.components.layers.modules.context import ContextRanks

MOST_QUERIES = 1024  # of a block, to bound the memory of its scores


@dataclass(frozen=True, slots=True)
class RingAttention:
    """Attention of this rank's queries to the keys of all ranks. `segments` (B, positions of all ranks): the id of the
    document of each position; None means one document. `seen` (B, positions of all ranks): False for the keys that no
    query may see, such as padding; None means that all may be seen.
    """

    context: ContextRanks
    causal: bool
    window: int | None
    scale: float
    softcap: float | None
    segments: Tensor | None
    seen: Tensor | None

    def attend(self, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTK: Tensor, sinks_H: Tensor | None) -> Tensor:
        """Return the attention output (B, H, T, K). It is 0 for a query that may attend to no key. `sinks_H`: the
        additional logit of each head (`Heads.sinks`)."""
        found: Tensor = _Ring.apply(q_BHTK, k_BGTK, v_BGTK, sinks_H, self)  # type: ignore[no-untyped-call]
        return found

    def blocks(self, owner: int, num_own: int) -> Iterator[tuple[slice, slice, int, int]]:
        """Yield the pairs of blocks for which this rank computes attention: its own queries, and keys of rank `owner`.
        Pairs that the causal order or the window forbids are left out. `num_own`: number of queries of this rank.

        A pair is (slice of the queries, slice of the keys, position of the first query, position of the first key).
        """
        c = num_own // 2
        step = min(c, MOST_QUERIES)
        for at, chunk in enumerate(self.context.firsts(c)):
            for start in range(0, c, step):
                first, size = chunk + start, min(step, c - start)
                for other, key in enumerate(self.context.firsts(c, owner)):
                    is_later = self.causal and key > first + size - 1
                    is_far = self.causal and self.window is not None and first - (key + c - 1) >= self.window
                    if not (is_later or is_far):
                        yield slice(at * c + start, at * c + start + size), slice(other * c, other * c + c), first, key

    def scores(self, q_BGRCK: Tensor, k_BGSK: Tensor, first: int, key: int) -> tuple[Tensor, Tensor | None]:
        """Return the scores (B, G, R, C, S) of a block of C queries and a block of S keys, in at least float32, and the
        derivative of `softcap` at each score (None without `softcap`). A score is -inf where a query may not see a key.
        G: heads of the keys; R: heads of the queries for each of them. `first`, `key`: position of the first query and
        of the first key."""
        products = q_BGRCK @ k_BGSK.unsqueeze(2).mT
        products = products.to(torch.promote_types(products.dtype, torch.float32)) * self.scale
        slope = None
        if self.softcap is not None:
            bent = torch.tanh(products / self.softcap)
            products, slope = self.softcap * bent, 1 - bent.square()
        allowed = self._find_allowed(products.shape[3], products.shape[4], first, key, products.device)
        return products if allowed is None else products.masked_fill(~allowed, float("-inf")), slope

    def _find_allowed(self, C: int, S: int, first: int, key: int, device: torch.device) -> Tensor | None:
        allowed = None
        queries, keys = slice(first, first + C), slice(key, key + S)
        if self.causal and (key + S > first or self.window is not None):
            ahead = torch.arange(first, first + C, device=device)[:, None] - torch.arange(key, key + S, device=device)
            allowed = ahead >= 0 if self.window is None else (ahead >= 0) & (ahead < self.window)
        if self.segments is not None:
            same = self.segments[:, queries, None] == self.segments[:, None, keys]
            allowed = same[:, None, None] if allowed is None else allowed & same[:, None, None]
        if self.seen is not None:
            seen = self.seen[:, None, None, None, keys]
            allowed = seen if allowed is None else allowed & seen
        return allowed


class _Ring(torch.autograd.Function):
    """Ring attention as an autograd function of queries, keys, values and sinks. In each step of its loop, a rank
    attends to the keys and values that came from one rank.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None, ring: RingAttention) -> Tensor:
        (B, H, T, K), G = q.shape, k.shape[1]
        q, wide = q.reshape(B, G, H // G, T, K), torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(q.shape, dtype=wide, device=q.device)
        total = out.new_full((B, G, H // G, T, 1), float("-inf"))  # logarithm of the normalizer
        if sinks is not None:
            total = total.copy_(sinks.view(G, -1, 1, 1))
        pair = torch.cat([k, v], -1)
        for owner in ring.context.owners():
            key, value = pair.chunk(2, -1)
            for own, other, first, at in ring.blocks(owner, q.shape[3]):
                scores, _ = ring.scores(q[:, :, :, own], key[:, :, other], first, at)
                before, after = total[:, :, :, own], scores.logsumexp(-1, keepdim=True)
                after = torch.logaddexp(before, after)
                weights = (scores - _finite(after)).exp().to(v.dtype)
                kept = out[:, :, :, own] * (before - _finite(after)).exp()
                out[:, :, :, own] = kept + (weights @ value[:, :, None, other]).to(wide)
                total[:, :, :, own] = after
            pair = ring.context.shift(pair, owner)
        ctx.ring, found = ring, out.to(v.dtype)
        ctx.save_for_backward(q, k, v, sinks, found, total)
        return found.view(B, H, T, K)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, total = ctx.saved_tensors
        ring, K = ctx.ring, k.shape[-1]
        d_out = gradients[0].reshape(out.shape).to(v.dtype)
        delta = (d_out.to(total.dtype) * out).sum(-1, keepdim=True)
        d_q = torch.zeros(q.shape, dtype=total.dtype, device=q.device)
        d_pair = torch.zeros((*k.shape[:-1], 2 * K), dtype=total.dtype, device=q.device)
        pair = torch.cat([k, v], -1)
        for owner in ring.context.owners():
            key, value = pair.chunk(2, -1)
            for own, other, first, at in ring.blocks(owner, q.shape[3]):
                query, d_own = q[:, :, :, own], d_out[:, :, :, own]
                scores, slope = ring.scores(query, key[:, :, other], first, at)
                weights = (scores - _finite(total[:, :, :, own])).exp()
                d_scores = weights * ((d_own @ value[:, :, None, other].mT).to(total.dtype) - delta[:, :, :, own])
                d_scores = (d_scores if slope is None else d_scores * slope).mul_(ring.scale).to(q.dtype)
                d_q[:, :, :, own] += d_scores @ key[:, :, None, other]
                d_pair[:, :, other, :K] += (d_scores.mT @ query).sum(2)
                d_pair[:, :, other, K:] += (weights.to(v.dtype).mT @ d_own).sum(2)
            pair, d_pair = ring.context.shift(pair, owner), ring.context.shift(d_pair)
        d_key, d_value = d_pair.chunk(2, -1)
        d_sinks = None
        if sinks is not None:
            weights = (sinks.view(-1, q.shape[2], 1, 1) - _finite(total)).exp()
            d_sinks = -(weights * delta).sum((0, 3, 4)).flatten().to(sinks.dtype)
        return d_q.to(q.dtype).flatten(1, 2), d_key.to(k.dtype), d_value.to(v.dtype), d_sinks, None


def _finite(total: Tensor) -> Tensor:
    """Return `total` with -inf replaced by 0. `total`: for each query, the logarithm of the sum of exp(score) over the
    keys. It is -inf for a query that has seen no key.
    """
    return total.masked_fill(total == float("-inf"), 0.0)
