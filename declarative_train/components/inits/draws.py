"""Random start values by index: element i of a parameter is a pure function of (seed, name, i).

So a rank that holds some rows of a parameter computes only these, with the same values as a rank that computes all. The
random numbers come from `components/counter_rng.py`; normal numbers are made as in Box and Muller (1958). They are
float32 for every dtype, with 24 random bits, as in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING

from declarative_train.components.counter_rng import key_of, mix

if TYPE_CHECKING:
    import numpy as np
    import torch

BLOCK = 1 << 14  # elements; a pair of normal ones is half a block apart, so another size gives other start values
_LANES = 64  # elements: at least a vector of torch or numpy
_BLOCKS_AT_ONCE = 64  # that a thread fills one after the other


class Draws:
    """Random numbers that fill a parameter, or its rows from `first_row` on. They depend on the seed and on the
    parameter's `name`. `shape`: the shape of the whole parameter."""

    def __init__(self, seed: int, name: str, shape: Sequence[int], first_row: int = 0) -> None:
        self.seed, self.name = seed, name
        self.shape = tuple(shape)
        self.first_row = first_row
        self._key = key_of(seed, name)

    def whole(self) -> torch.Tensor:
        """Return standard normal numbers for all rows of the parameter, not only for those from `first_row` on. The
        tensor is float32, on the CPU.
        """
        import torch

        values = torch.empty(self.shape, dtype=torch.float32, device="cpu")
        self._fill(values, self._normal, first=0)
        return values

    def uniform(self, tensor: torch.Tensor, low: float, high: float) -> None:
        """Fill `tensor`, the rows of the parameter from `self.first_row` on, with uniform numbers in [low, high)."""
        self._write(tensor, self._uniform, high - low, low)

    def normal(self, tensor: torch.Tensor, mean: float, std: float) -> None:
        self._write(tensor, self._normal, std, mean)

    def by_inverse(self, tensor: torch.Tensor, of_uniform: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Fill `tensor` with random numbers of any distribution. `tensor` has the parameter's rows from
        `self.first_row` on. `of_uniform`: the inverse of the distribution function; it gets uniform numbers in [0, 1).
        """
        import torch

        def of_block(number: int, count: int) -> np.ndarray:
            found: np.ndarray = of_uniform(torch.from_numpy(self._uniform(number, count))).numpy()
            return found

        self._write(tensor, of_block, 1.0, 0.0)

    def _write(
        self, tensor: torch.Tensor, block: Callable[[int, int], np.ndarray], factor: float, shift: float
    ) -> None:
        import torch

        is_there = tensor.device.type == "cpu" and tensor.is_contiguous() and tensor.dtype == torch.float32
        values = tensor.detach() if is_there else torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
        self._fill(values, block, first=self.first_row * prod(self.shape[1:]), factor=factor, shift=shift)
        if not is_there:
            with torch.no_grad():
                tensor.copy_(values)

    def _fill(
        self,
        values: torch.Tensor,
        block: Callable[[int, int], np.ndarray],
        *,
        first: int,
        factor: float = 1.0,
        shift: float = 0.0,
    ) -> None:
        """Fill `values` with random numbers, each multiplied by `factor` and then increased by `shift`. `values`:
        consecutive elements of a parameter. `first`: index of their first element in the parameter.
        `block(number, count)`: function that returns random numbers for at least the first `count` elements of block
        `number`; the parameter is divided into blocks of `BLOCK` elements."""
        import numpy as np
        import torch

        flat = values.view(-1).numpy()
        last = first + len(flat)
        scale, offset = np.float32(factor), np.float32(shift)

        def fill(numbers: range) -> None:
            for number in numbers:
                start = number * BLOCK
                begin, end = max(first, start), min(last, start + BLOCK)
                made = flat[begin - first : end - first]
                np.multiply(block(number, end - start)[begin - start : end - start], scale, out=made)
                if shift:
                    np.add(made, offset, out=made)

        numbers = range(first // BLOCK, -(-last // BLOCK)) if len(flat) else range(0)
        parts = [numbers[at : at + _BLOCKS_AT_ONCE] for at in range(0, len(numbers), _BLOCKS_AT_ONCE)]
        num_threads = min(torch.get_num_threads(), len(parts))
        if num_threads < 2:
            fill(numbers)
            return
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(num_threads) as pool:  # numpy computes without the interpreter's lock
            list(pool.map(fill, parts))

    def _uniform(self, number: int, count: int) -> np.ndarray:
        words = self._words(number, -(-count // 2), BLOCK // 2)
        return _to_unit(words.view("<u4"))

    def _normal(self, number: int, count: int) -> np.ndarray:
        """Return all standard normal numbers of a block of `BLOCK` numbers, or only the first half if `count` is not
        larger. `number`: index of the block. By the method of Box and Muller, random word i of 64 bits gives the
        numbers i (the cosine) and i + BLOCK / 2 (the sine)."""
        import numpy as np

        half = BLOCK // 2
        words = self._words(number, min(count, half), half).view("<u4")
        radius, angle = _to_unit(words[0::2]), _to_unit(words[1::2])
        np.subtract(np.float32(1), radius, out=radius)  # in (0, 1]
        np.log(radius, out=radius)
        radius *= np.float32(-2)
        np.sqrt(radius, out=radius)
        angle *= np.float32(2 * np.pi)
        if count <= half:
            return radius * np.cos(angle)  # type: ignore[no-any-return]
        found = np.empty(BLOCK, np.float32)
        np.multiply(radius, np.cos(angle, out=found[:half]), out=found[:half])
        np.multiply(radius, np.sin(angle, out=found[half:]), out=found[half:])
        return found

    def _words(self, number: int, count: int, per_block: int) -> np.ndarray:
        """Return at least the first `count` random 64-bit words of the block with index `number`. There may be a few
        more, so that numpy computes every word by the same routine. `per_block`: number of words of a block."""
        import numpy as np

        # numpy may compute the last few elements by another routine, whose results differ in the last bit
        count = min(per_block, -(-count // _LANES) * _LANES)
        start = number * per_block
        return mix(np.arange(start, start + count, dtype=np.uint64), self._key)


def _to_unit(words: np.ndarray) -> np.ndarray:
    """Return a float32 number in [0, 1) for each random 32-bit word, made from its upper 24 bits."""
    import numpy as np

    found = (words >> np.uint32(8)).view(np.int32).astype(np.float32)  # signed: every processor can convert these
    found *= np.float32(2**-24)
    return found
