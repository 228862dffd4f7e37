"""Random numbers in nodes that are computed from fields alone: a hash of (seed, epoch, sample, node, draw, position).

So they are the same on every layout and stage, and after a resume. All evaluations use the same numbers, so that their
results can be compared. The hash is that of `components/counter_rng.py`, computed with torch's int64, which wrap
around."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from declarative_train.components.counter_rng import key_of, mix

if TYPE_CHECKING:
    import numpy as np

_BITS = {torch.bfloat16: 8, torch.float16: 11}  # more bits would round up to 1; other dtypes use 24, as in torch


class FieldDraws:
    """Source of random numbers for a module that computes values from fields. Before each call of the module, call
    `begin` with the samples of the batch."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._rows = torch.zeros(0, dtype=torch.int64)

    def begin(self, samples: np.ndarray, epoch: int | None, num_rows: int, device: torch.device) -> None:
        """Set the samples of the next batch. `samples`: their numbers (`Batch.sample_ids`), (N,). `epoch`: index of the
        epoch; None: the batch belongs to an evaluation. `num_rows`: rows of the batch; those after the N samples are
        padding."""
        rows = mix(samples, key_of(self._seed, "draws", "evaluation" if epoch is None else epoch)).view("int64")
        padded = torch.zeros(num_rows, dtype=torch.int64)
        padded[: len(rows)] = torch.from_numpy(rows)
        self._rows = padded.to(device, non_blocking=True)

    def function(self, name: str, path: str, number: int) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function that a node calls in place of torch's random function `name` (`rand_like` or
        `randn_like`). `path`: path of the node. `number`: position of this call among the random calls in the node's
        expression, from 0."""
        key = _to_signed(key_of(self._seed, path, number))

        def draw(x: torch.Tensor) -> torch.Tensor:
            """Return random numbers of the shape and dtype of `x` (B, ...)."""
            size = math.prod(x.shape[1:])
            starts = _mix(self._rows.to(x.device) + key)
            words = _mix(starts[:, None] + _steps(size, x.device))
            found = _normal(words) if name == "randn_like" else _uniform(words >> 16, _BITS.get(x.dtype, 24))
            return found.to(x.dtype).reshape(x.shape)

        draw.__name__ = draw.__qualname__ = f"{name}_{path.replace('.', '_')}_{number}"
        return draw


def _to_signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _mix(z: torch.Tensor) -> torch.Tensor:
    """Return `z` (int64) with the bits of each element mixed by the finaliser of SplitMix64. Its shifts are logical;
    torch's `>>` copies the sign bit, so masks set the upper bits to 0."""
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _to_signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _to_signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def _steps(size: int, device: torch.device) -> torch.Tensor:
    return torch.arange(1, size + 1, dtype=torch.int64, device=device) * _to_signed(0x9E3779B97F4A7C15)


def _uniform(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return float64 numbers in [0, 1), each made from the lowest `bits` bits of an element of `words` (int64)."""
    return (words & ((1 << bits) - 1)).to(torch.float64) * 2.0**-bits


def _normal(words: torch.Tensor) -> torch.Tensor:
    """Return float64 numbers with a standard normal distribution, one for each element of `words` (int64). 24 bits of
    the element give the radius, 24 other bits the angle (Box and Muller, 1958).

    torch computes the last elements of a vector by other code than the rest, so a number depends slightly on its
    position. The differences are below the precision of float32.
    """
    radius = (-2.0 * torch.log1p(-_uniform(words >> 8, 24))).sqrt_()
    return radius.mul_(torch.cos(_uniform(words >> 36, 24) * (2.0 * math.pi)))
