"""Angles of rotary positions, and how a model that was trained on short sequences is stretched to longer ones.

T positions, K head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Angles:
    """Pair i of a head turns by `base ** (-2 i / K)` per position, before `scaling` (``, linear, llama3, yarn)."""

    base: float
    scaling: str = ""
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    @property
    def amplitude(self) -> float:
        """What cosine and sine are multiplied with; of yarn, equation 22 of the paper."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def table(self, T: int, K: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, (T, K / 2) each, in float32 at least.

        Su et al., RoFormer, 2021; element i is paired with i + K / 2, as in GPT-NeoX and the published llama weights.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        plain = self.base ** (torch.arange(0, K, 2, dtype=dtype, device=like.device) / -K)
        angles = torch.outer(torch.arange(T, dtype=dtype, device=like.device), self._scaled(plain, K))
        if self.amplitude == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * self.amplitude, angles.sin() * self.amplitude

    def _scaled(self, plain: Tensor, K: int) -> Tensor:
        """The frequencies (K / 2), from fast to slow."""
        if self.scaling == "linear":  # Chen et al., Extending context window of LLMs via positional interpolation, 2023
            return plain / self.factor
        if self.scaling == "llama3":
            return self._llama3(plain)
        return self._yarn(plain, K) if self.scaling == "yarn" else plain

    def _llama3(self, plain: Tensor) -> Tensor:
        """Waves longer than the original length are slowed by `factor`, short ones are left, with a ramp between them.
        Grattafiori et al., The Llama 3 herd of models, 2024; the ramp is that of the published code."""
        turns = self.original_length * plain / (2 * math.pi)  # within the original length
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain

    def _yarn(self, plain: Tensor, K: int) -> Tensor:
        """Pairs that turn more than `beta_fast` times within the original length are left, those that turn less than
        `beta_slow` times are slowed by `factor`, with a ramp between them. Peng et al., YaRN, 2023."""
        low = max(math.floor(self._pair_that_turns(self.beta_fast, K)), 0)
        high = min(math.ceil(self._pair_that_turns(self.beta_slow, K)), K - 1)
        places = torch.arange(K // 2, dtype=plain.dtype, device=plain.device)
        slowed = ((places - low) / max(high - low, 0.001)).clamp(0, 1)
        return slowed * plain / self.factor + (1 - slowed) * plain

    def _pair_that_turns(self, times: float, K: int) -> float:
        """The place, between pairs, of what turns so many times within the original length."""
        return K * math.log(self.original_length / (times * 2 * math.pi)) / (2 * math.log(self.base))
