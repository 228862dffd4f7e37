"""Random numbers for whole arrays, computed from a key and an integer: the same pair always gives the same number.

There is no state, so the number of row 10^12 is computed as fast as that of row 0. The hash is the last step of
SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). Not for cryptography.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def key_of(*parts: object) -> int:
    """Return a 64-bit hash of `parts`, for use as a key. It is the same on every machine."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(numbers: np.ndarray, key: int) -> np.ndarray:
    """Return one random uint64 for each of the integers `numbers`, determined by the integer and `key`. Different
    integers give different results."""
    import numpy as np

    z = numbers.astype(np.uint64)  # a copy, which is changed in place
    z *= np.uint64(_GOLDEN)
    z += np.uint64(key & _MASK)
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=shifted)
    z ^= shifted
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=shifted)
    z ^= shifted
    return z


def uniform(numbers: np.ndarray, key: int) -> np.ndarray:
    """Return one random float64 in [0, 1) for each of the integers `numbers`. It depends only on the integer and on
    `key`."""
    import numpy as np

    found: np.ndarray = (mix(numbers, key) >> np.uint64(11)) * 2.0**-53
    return found


def below(numbers: np.ndarray, key: int, bound: int) -> np.ndarray:
    """Return one random int64 in 0..bound-1 for each of the integers `numbers`, determined by the integer and `key`."""
    import numpy as np

    return (uniform(numbers, key) * bound).astype(np.int64)


def normal(numbers: np.ndarray, key: int) -> np.ndarray:
    """Return one standard normal float64 for each of the integers `numbers` (Box and Muller, 1958). It depends only on
    the integer and on `key`."""
    import numpy as np

    radius = np.sqrt(-2.0 * np.log1p(-uniform(numbers, key)))
    found: np.ndarray = radius * np.cos(2.0 * np.pi * uniform(numbers, key ^ 0xD1B54A32D192ED03))
    return found


class Drawn:
    """Source of a sequence of random numbers that depends only on a key and on one integer, such as the index of a
    sample."""

    def __init__(self, key: int, number: int) -> None:
        self._state = self.key = _mix_one(number * _GOLDEN + key)
        self._count = 0

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return the next random number in [low, high)."""
        self._count += 1
        share: float = (_mix_one(self._state + self._count * _GOLDEN) >> 11) * 2.0**-53
        return low + (high - low) * share

    def below(self, bound: int) -> int:
        """Return the next random integer in 0..bound-1."""
        return int(self.uniform() * bound)

    def happens(self, p: float) -> bool:
        return self.uniform() < p

    def order(self, count: int) -> list[int]:
        """Return a random permutation of 0..count-1."""
        found = list(range(count))
        for place in range(count - 1, 0, -1):
            other = self.below(place + 1)
            found[place], found[other] = found[other], found[place]
        return found


def _mix_one(number: int) -> int:
    z = number & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
