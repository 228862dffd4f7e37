"""Sampling of the next token from logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of sampling. `temperature`: the logits are divided by it; 0: always choose the most likely token.
    `top_k`: sample among the k most likely tokens. `top_p`: sample among the fewest tokens whose probabilities add up
    to at least this."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def choose_token(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Return the number (id) of one token, sampled from logits (V,)."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    p = (logits.double() / sampling.temperature).softmax(-1)
    ordered, order = p.sort(descending=True, stable=True)
    if sampling.top_k is not None:
        ordered[sampling.top_k :] = 0
    if sampling.top_p is not None:
        before = ordered.cumsum(0) - ordered
        ordered[before >= sampling.top_p * float(ordered.sum())] = 0
    return int(order[torch.multinomial(ordered, 1, generator=generator)])
