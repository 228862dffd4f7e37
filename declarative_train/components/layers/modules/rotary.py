"""Rotary positions: pairs of elements of a query or key are rotated by an angle that grows with the position.

B batch, T positions, H heads, K head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Angles:
    """Rotary angles. Pair i of a head is rotated by `base ** (-2 i / K)` per position; `scaling` changes these
    frequencies ("", linear, llama3, yarn)."""

    base: float
    scaling: str = ""
    factor: float = 1.0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    @property
    def amplitude(self) -> float:
        """Factor by which cosine and sine are multiplied; for yarn, equation 22 of the paper, else 1."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnify(self.mscale) / self._magnify(self.mscale_all_dim)
        return self._magnify(1.0)

    @property
    def product_factor(self) -> float:
        """Factor on the products of queries and keys in latent attention (DeepSeek-V3)."""
        return self._magnify(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnify(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def table(self, T: int, K: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the angles of T positions, (T, K / 2) each, in float32 at least.

        Su et al., RoFormer, 2021; element i is paired with i + K / 2, as in GPT-NeoX and the published llama weights.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        plain = self.base ** (torch.arange(0, K, 2, dtype=dtype, device=like.device) / -K)
        angles = torch.outer(torch.arange(T, dtype=dtype, device=like.device), self._scale(plain, K))
        if self.amplitude == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * self.amplitude, angles.sin() * self.amplitude

    def _scale(self, plain: Tensor, K: int) -> Tensor:
        """Return the frequencies (K / 2) of all pairs, changed by `scaling`; `plain`: the unscaled ones, from fast to
        slow."""
        if self.scaling == "linear":  # Chen et al., Extending context window of LLMs via positional interpolation, 2023
            return plain / self.factor
        if self.scaling == "llama3":
            return self._llama3(plain)
        return self._yarn(plain, K) if self.scaling == "yarn" else plain

    def _llama3(self, plain: Tensor) -> Tensor:
        """Return the frequencies scaled as for Llama 3: waves longer than the original length are slowed down by
        `factor`, short ones are kept, with a ramp between them. Grattafiori et al., The Llama 3 herd of models, 2024;
        the ramp is that of the published code."""
        turns = self.original_length * plain / (2 * math.pi)  # within the original length
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain

    def _yarn(self, plain: Tensor, K: int) -> Tensor:
        """Return the frequencies (K // 2,) scaled by YaRN (Peng et al., 2023), from the unscaled ones in `plain`. A
        frequency that makes more than `beta_fast` turns within the original length is unchanged, one that makes less
        than `beta_slow` is divided by `factor`; between them the two are mixed linearly."""
        low, high = self._pair_that_turns(self.beta_fast, K), self._pair_that_turns(self.beta_slow, K)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, K - 1)
        places = torch.arange(K // 2, dtype=plain.dtype, device=plain.device)
        slowed = ((places - low) / (high - low or 0.001)).clamp(0, 1)
        return slowed * plain / self.factor + (1 - slowed) * plain

    def _pair_that_turns(self, times: float, K: int) -> float:
        """Return the (fractional) index of the pair that makes `times` full turns within the original length."""
        return K * math.log(self.original_length / (times * 2 * math.pi)) / (2 * math.log(self.base))


class RotaryTables:
    """Cache of the table of cos and sin that all layers of a model with the same angles use (`share_tables`), kept
    between steps. It is not a buffer, which would have to survive meta devices, casts and copies. Under torch.compile
    the table is computed where it is used."""

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[int, Tensor, Tensor]] = {}

    def __call__(self, T: int, K: int, angles: Angles, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return `angles.table(T, K, like)`, computed once and cached."""
        if torch.compiler.is_compiling():
            return angles.table(T, K, like)
        key = (K, angles, like.dtype, like.device)
        length, cos_TK, sin_TK = self._kept.get(key, (0, like, like))
        if length < T:
            with torch.inference_mode(False), torch.no_grad():
                cos_TK, sin_TK = angles.table(T, K, like)
            self._kept[key] = (T, cos_TK, sin_TK)
        return cos_TK[:T], sin_TK[:T]

    def __deepcopy__(self, memo: dict[int, object]) -> RotaryTables:
        return self  # its keys include the device


def rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    """Rotate each pair of elements by the angle of its position. Computes in the dtype of the table and returns the
    dtype of x."""
    a, b = x_BHTK.chunk(2, dim=-1)
    turned = torch.cat([a * cos_TK - b * sin_TK, b * cos_TK + a * sin_TK], dim=-1)
    return turned.to(x_BHTK.dtype)
