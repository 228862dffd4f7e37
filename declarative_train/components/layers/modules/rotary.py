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
    """Settings of rotary positions. At position t, pair i of the K elements of a head is rotated by t * `base ** (-2 i
    / K)`; the power is the frequency of the pair. `scaling` ("linear", "llama3" or "yarn") changes the frequencies;
    with "" they are unchanged. The other fields are the keys of the scaling (`RotaryScaling`).
    """

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
        """Factor by which cosines and sines are multiplied. It is 1 unless `scaling` is "yarn". With "yarn" it is
        `attention_factor`. If this is not set, it follows from `mscale` and `mscale_all_dim` (DeepSeek's formula) or,
        if they are not set either, from equation 22 of the YaRN paper."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._magnify(self.mscale) / self._magnify(self.mscale_all_dim)
        return self._magnify(1.0)

    @property
    def product_factor(self) -> float:
        """Factor by which the layer `latent_attention` (DeepSeek-V3) multiplies the products of queries and keys. It is
        1 unless `mscale_all_dim` is set.
        """
        return self._magnify(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def _magnify(self, weight: float) -> float:
        return 0.1 * weight * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def table(self, T: int, K: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cosines and the sines of the angles of positions 0 to T - 1, each (T, K / 2), multiplied by
        `amplitude`. They are in float32 at least, on the device of `like`. Elements i and i + K / 2 of a head are a
        pair, as in GPT-NeoX and in the published Llama weights. Su et al., RoFormer, 2021.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        plain = self.base ** (torch.arange(0, K, 2, dtype=dtype, device=like.device) / -K)
        angles = torch.outer(torch.arange(T, dtype=dtype, device=like.device), self._scale(plain, K))
        if self.amplitude == 1.0:
            return angles.cos(), angles.sin()
        return angles.cos() * self.amplitude, angles.sin() * self.amplitude

    def _scale(self, plain: Tensor, K: int) -> Tensor:
        """Return the frequencies (K / 2,), scaled by the method `scaling`. `plain`: the frequencies before scaling, in
        descending order."""
        if self.scaling == "linear":  # Chen et al., Extending context window of LLMs via positional interpolation, 2023
            return plain / self.factor
        if self.scaling == "llama3":
            return self._llama3(plain)
        return self._yarn(plain, K) if self.scaling == "yarn" else plain

    def _llama3(self, plain: Tensor) -> Tensor:
        """Return the frequencies `plain`, one for each pair of elements, scaled as in Llama 3 (Grattafiori et al., The
        Llama 3 herd of models, 2024). It depends on the number of full turns of a pair over `original_length`
        positions:

        at least `high_freq_factor`   unchanged
        at most `low_freq_factor`     divided by `factor`
        between                       mean of both, weighted by the turns, as in the published code
        """
        turns = self.original_length * plain / (2 * math.pi)  # within the original length
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain

    def _yarn(self, plain: Tensor, K: int) -> Tensor:
        """Return the frequencies `plain` (K // 2,), one for each pair of elements, scaled as in YaRN (Peng et al.,
        2023).

        It depends on the number of full turns of a pair over `original_length` positions:

        above `beta_fast`   unchanged
        below `beta_slow`   divided by `factor`
        between             mean of both, whose weights change linearly with the index of the pair

        `truncate`: round the indices at the two limits outwards to whole numbers.
        """
        low, high = self._pair_that_turns(self.beta_fast, K), self._pair_that_turns(self.beta_slow, K)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, K - 1)
        places = torch.arange(K // 2, dtype=plain.dtype, device=plain.device)
        slowed = ((places - low) / (high - low or 0.001)).clamp(0, 1)
        return slowed * plain / self.factor + (1 - slowed) * plain

    def _pair_that_turns(self, times: float, K: int) -> float:
        """Return the index of the pair of rotated elements that makes `times` full turns over `original_length`
        positions. It is a fraction if it is between two pairs. `K`: width of a head."""
        return K * math.log(self.original_length / (times * 2 * math.pi)) / (2 * math.log(self.base))


class RotaryTables:
    """Cache of tables of cosines and sines, kept between steps and shared by the layers of a model (`share_tables`).
    Layers with the same angles use the same table. The tables are not buffers, because buffers are moved to the meta
    device, cast and copied with the model. Under torch.compile nothing is cached: each layer computes its table.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[object, ...], tuple[int, Tensor, Tensor]] = {}

    def __call__(self, T: int, K: int, angles: Angles, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the result of `angles.table(T, K, like)`, from the cache if possible."""
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
    """Return `x_BHTK` with each pair of elements rotated by the angle of its position. The computation is in the dtype
    of the tables; the result has the dtype of `x_BHTK`.
    """
    a, b = x_BHTK.chunk(2, dim=-1)
    turned = torch.cat([a * cos_TK - b * sin_TK, b * cos_TK + a * sin_TK], dim=-1)
    return turned.to(x_BHTK.dtype)
