"""Random numbers of nodes that are computed from fields alone: by (seed, epoch, sample, node, place in the sample).

They are the same on every layout, on every stage of a pipeline and after a resume, since nothing is drawn in turn. An
evaluation draws the same ones each time, so that its values can be compared from one to the next. The mixing is that
of `components/counter_rng.py`, in torch's whole numbers, which have a sign and come round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from declarative_train.components.counter_rng import key_of, mixed

if TYPE_CHECKING:
    import numpy as np

_BITS = {torch.bfloat16: 8, torch.float16: 11}  # more would round up to 1; all others have 24, as torch's own


class FieldDraws:
    """`begin` tells which samples the rows are, before the module that was built with it is called."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rows = torch.zeros(0, dtype=torch.int64)

    def begin(self, samples: np.ndarray, epoch: int | None, num_rows: int, device: torch.device) -> None:
        """`samples` are the numbers of the real rows, of `num_rows` with the padding; `epoch`: of training."""
        rows = mixed(samples, key_of(self._seed, "draws", "evaluation" if epoch is None else epoch)).view("int64")
        padded = torch.zeros(num_rows, dtype=torch.int64)
        padded[: len(rows)] = torch.from_numpy(rows)
        self._rows = padded.to(device, non_blocking=True)

    def function(self, name: str, path: str, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """In the place of torch's `rand_like` or `randn_like`, draw `number` of the node at `path`."""
        key = _signed(key_of(self._seed, path, number))

        def drawn(x: torch.Tensor) -> torch.Tensor:
            """(B, ...) like x."""
            size = math.prod(x.shape[1:])
            starts = _mixed(self._rows.to(x.device) + key)
            words = _mixed(starts[:, None] + _steps(size, x.device))
            found = _normal(words) if name == "randn_like" else _uniform(words >> 16, _BITS.get(x.dtype, 24))
            return found.to(x.dtype).reshape(x.shape)

        drawn.__name__ = drawn.__qualname__ = f"{name}_{path.replace('.', '_')}_{number}"
        return drawn


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _mixed(z: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64; `>>` keeps the sign, which the masks take away."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _steps(size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1, size + 1, dtype=torch.int64, device=device) * _signed(0x9E3779B97F4A7C15)


def _uniform(words: torch.Tensor, bits: int) -> torch.Tensor:
    """float64 in [0, 1), of `bits` of each."""
    return (words & ((1 << bits) - 1)).to(torch.float64) * 2.0**-bits


def _normal(words: torch.Tensor) -> torch.Tensor:
    """float64, of 24 bits for the radius and 24 for the angle (Box and Muller, 1958): how a vector's last elements are
    computed differs beyond what float32 holds."""
    radius = (-2.0 * torch.log1p(-_uniform(words >> 8, 24))).sqrt_()
    return radius.mul_(torch.cos(_uniform(words >> 36, 24) * (2.0 * math.pi)))
