"""Ring attention: the values and gradients of attention to all keys, from the keys of one rank at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from declarative_train.components.layers.modules import ring
from declarative_train.components.layers.modules.attention import Heads, attend_allowed, visible_keys
from declarative_train.components.layers.modules.context import ContextRanks
from declarative_train.engine.collectives import Ranks
from tests.engine.on_ranks import forked

RANKS, B, H, G, T, K = 2, 2, 4, 2, 24, 6
CASES: list[dict[str, Any]] = [
    {"causal": True},
    {"causal": True, "window": 5, "softcap": 3.0},
    {"causal": False, "sinks": True},
    {"causal": True, "segments": True, "sinks": True},
    {"causal": False, "seen": True},
]


class Counted(Ranks):
    """Ranks that record the elements of each exchange."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []

    def exchange(self, tensor: torch.Tensor, *numbers: Any) -> torch.Tensor:
        self.sent.append(tensor.numel())
        return super().exchange(tensor, *numbers)


def inputs(case: dict[str, Any]) -> list[torch.Tensor | None]:
    torch.manual_seed(0)
    q, k, v, d_out = (torch.randn(B, heads, T, K, dtype=torch.float64) for heads in (H, G, G, H))
    sinks = torch.randn(H, dtype=torch.float64) if case.get("sinks") else None
    segments = torch.randint(0, 2, (B, T)).sort(1).values if case.get("segments") else None
    seen = torch.rand(B, T) < 0.5 if case.get("seen") else None
    if seen is not None:
        seen[0] = False  # no query of this sample sees a key
    return [q, k, v, d_out, sinks, segments, seen]


def of_parts(rank: int, case: dict[str, Any]) -> tuple[list[torch.Tensor | None], list[int]]:
    ring.MOST_QUERIES = 4  # of the 6 of a chunk
    ranks = Counted()
    context = ContextRanks(ranks, in_ring=True)
    q, k, v, d_out, sinks, segments, seen = inputs(case)
    parts = [context.take(each.transpose(1, 2)).transpose(1, 2) for each in (q, k, v, d_out) if each is not None]
    leaves = [each.clone().requires_grad_() for each in (*parts[:3], *([] if sinks is None else [sinks]))]
    window, softcap = case.get("window"), case.get("softcap")
    attention = ring.RingAttention(context, case["causal"], window, K**-0.5, softcap, segments, seen)
    found = attention.attend(leaves[0], leaves[1], leaves[2], leaves[3] if sinks is not None else None)
    torch.autograd.backward(found, parts[3])
    return [found.detach(), *(each.grad for each in leaves)], ranks.sent


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_ring_equals_attention_to_all_keys(case: dict[str, Any]) -> None:
    q, k, v, d_out, sinks, segments, seen = inputs(case)
    assert q is not None
    assert k is not None
    assert v is not None
    leaves = [each.clone().requires_grad_() for each in (q, k, v, *([] if sinks is None else [sinks]))]
    allowed = torch.ones(B, 1, T, T, dtype=torch.bool)
    if case["causal"]:
        allowed = allowed & visible_keys(T, T, case.get("window"), q.device)
    if segments is not None:
        allowed = allowed & (segments[:, :, None] == segments[:, None])[:, None]
    if seen is not None:
        allowed = allowed & seen[:, None, None]
    heads = Heads(H, G, K, softcap=case.get("softcap"), sinks=sinks is not None)
    sinks = leaves[3] if sinks is not None else None
    wanted = attend_allowed(leaves[0], leaves[1], leaves[2], allowed, 0.0, False, heads, sinks)
    torch.autograd.backward(wanted, d_out)
    results = forked(RANKS, of_parts, case)
    chunks = [torch.arange(T).chunk(2 * RANKS)[at] for at in (0, 3, 1, 2)]  # of rank 0, then of rank 1
    order = torch.cat(chunks)
    for number, whole in enumerate([wanted.detach(), *(each.grad for each in leaves[:3])]):
        joined = torch.cat([found[number] for found, _ in results], 2)
        assert whole is not None
        torch.testing.assert_close(joined, whole[:, :, order])
    if sinks is not None:
        torch.testing.assert_close(sum(found[4] for found, _ in results), sinks.grad)
    own = B * G * (T // RANKS) * 2 * K
    for _, sent in results:
        assert sent == [own] * ((RANKS - 1) + (2 * RANKS - 1)), "keys once ahead; keys and their gradients back"
