"""Order of the data: (seed, epoch, position) -> sample, and the positions of each data-parallel rank in each batch.

An epoch has as many positions as the set has samples: the sample at position 0 is used first. With global batches of 4,
the second batch of an epoch has the positions 4 to 7. With 2 ranks and microbatches of 1 row, this batch has 2 chunks:
rank 0 computes position 4, then 6; rank 1 computes position 5, then 7.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from declarative_train.components.counter_rng import key_of, mix
from declarative_train.data.spec import BatchSpec

_SORTED = 1 << 16  # largest permutation that `permute` makes by sorting random keys
_ROUNDS = 4  # of the Feistel network
_FOLDS = 4  # multiplications in `shuffle_all`
_FEW = 1 << 12  # largest permutation that `shuffle_all` makes by sorting random keys
_AT_ONCE = 1 << 14  # numbers that fit into a processor cache together


def sample_index(seed: int, epoch: int, positions: np.ndarray, num_samples: int) -> np.ndarray:
    """Return the index in the set (int64) of the sample at each of `positions` of a fully shuffled epoch."""
    return permute(key_of("order", seed, epoch), positions, num_samples)


def permute(key: int, positions: np.ndarray, size: int) -> np.ndarray:
    """Return the entries (int64) at these positions of a random permutation of 0..size-1, which `key` determines. A
    large permutation is not stored: each entry is computed."""
    if size <= _SORTED:
        order: np.ndarray = _sort_keys(key, size)[positions]
        return order
    return _walk_cycle(key, np.asarray(positions, np.uint64), size)


def shuffle_all(key: int, size: int) -> np.ndarray:
    """Return a random permutation of 0..size-1 as an int64 array, which `key` determines. It differs from that of
    `permute`, and takes a tenth of the time for each entry.

    The method is that of the finalisers of hash functions. Four times, the numbers are multiplied by an odd number, and
    their lower halves are combined with their upper halves. This permutes the numbers below the next power of two;
    those of `size` and more are dropped."""
    if size <= _FEW:
        return _sort_keys(key, size).copy()
    bits = (size - 1).bit_length()
    # the lower bits of the results depend only on the lower bits of the numbers
    kind = np.dtype(np.uint32 if bits <= 32 else np.uint64)
    every = (1 << 8 * kind.itemsize) - 1
    factors = [key_of(key, number) for number in range(_FOLDS)]
    folds = [(kind.type((factor | 1) & every), kind.type(factor >> 32)) for factor in factors]
    mask, half = kind.type((1 << bits) - 1), kind.type((bits + 1) // 2)
    found = np.empty(size, np.int64)
    done = 0
    first = np.arange(min(_AT_ONCE, 1 << bits), dtype=kind)
    numbers, upper = np.empty_like(first), np.empty_like(first)
    for start in range(0, 1 << bits, _AT_ONCE):
        np.add(first, kind.type(start), out=numbers)
        for factor, term in folds:
            numbers *= factor
            numbers += term
            numbers &= mask
            np.right_shift(numbers, half, out=upper)
            numbers ^= upper
        inside = np.compress(numbers < size, numbers)
        found[done : done + len(inside)] = inside
        done += len(inside)
    return found


@lru_cache(maxsize=8)
def _sort_keys(key: int, size: int) -> np.ndarray:
    order = np.argsort(mix(np.arange(size), key))  # no two keys are equal: any sort gives the same order
    order.setflags(write=False)
    return order


def _walk_cycle(key: int, positions: np.ndarray, size: int) -> np.ndarray:
    bits = (size - 1).bit_length()
    found = _network(key, positions, bits)
    outside = np.flatnonzero(found >= size)
    while outside.size:
        again = _network(key, found[outside], bits)
        found[outside] = again
        outside = outside[again >= size]
    return found.astype(np.int64)


def _network(key: int, numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return the entries at `numbers` of a permutation of 0..2^bits-1. The permutation is a Feistel network: each
    round changes one half of the bits by a function of the other half."""
    low_bits = np.uint64(bits - bits // 2)
    low_mask, high_mask = (np.uint64((1 << width) - 1) for width in (bits - bits // 2, bits // 2))
    low, high = numbers & low_mask, numbers >> low_bits
    for number in range(_ROUNDS):
        if number % 2:
            low ^= mix(high, key_of(key, number)) & low_mask
        else:
            high ^= mix(low, key_of(key, number)) & high_mask
    return high << low_bits | low


@dataclass(frozen=True, slots=True)
class RankChunk:
    """Rows that one rank computes at once, in one chunk of a global batch: the `num_rows` positions of the epoch from
    `start` on, then `num_padding` rows of padding. Each row of padding repeats the sample at position `filler`."""

    start: int
    num_rows: int
    num_padding: int
    filler: int


@dataclass(frozen=True, slots=True)
class StepSlice:
    """Global batch of an optimizer step: `size` positions of epoch `epoch` (from 0), from position `start` on."""

    epoch: int
    start: int
    size: int


def locate(step: int, batch: BatchSpec, num_samples: int) -> StepSlice:
    """Return the epoch and the positions of the global batch of optimizer step `step` (from 1). `num_samples`: samples
    of the training set."""
    epoch, number = divmod(step - 1, batch.steps_per_epoch)
    start = number * batch.global_batch_size
    return StepSlice(epoch, start, min(batch.global_batch_size, num_samples - start))


def samples_until(step: int, batch: BatchSpec, num_samples: int) -> int:
    """Return the number of samples that the first `step` steps of a run use."""
    epochs, inside = divmod(step, batch.steps_per_epoch)
    per_epoch = min(num_samples, batch.steps_per_epoch * batch.global_batch_size)
    return epochs * per_epoch + min(inside * batch.global_batch_size, per_epoch)


def rank_chunks(found: StepSlice, batch: BatchSpec, dp_rank: int) -> list[RankChunk]:
    """Return the rows and the padding that a data-parallel rank computes in the global batch `found`, chunk by chunk.
    There are accumulation x num_microbatches chunks, also in a smaller last batch of an epoch."""
    size = batch.microbatch_size
    chunk = batch.data_parallel_size * size
    return [
        _rank_chunk(found.start, found.size, number * chunk + dp_rank * size, size, batch.pad_to_full)
        for number in range(batch.accumulation * batch.num_microbatches)
    ]


def full_batch_positions(start: int, num_steps: int, batch: BatchSpec, dp_rank: int) -> np.ndarray:
    """Return which positions of the epoch the data-parallel rank `dp_rank` computes in `num_steps` consecutive full
    batches, as one int64 array, batch after batch. `start`: the first position of the first global batch."""
    positions = np.arange(start, start + num_steps * batch.global_batch_size)
    mine: np.ndarray = positions.reshape(-1, batch.data_parallel_size, batch.microbatch_size)[:, dp_rank]
    return mine.ravel()


def _rank_chunk(start: int, size: int, offset: int, wanted: int, pad_to_full: bool) -> RankChunk:
    """Return the `wanted` rows from index `offset` on of the batch of `size` positions from `start` on. Rows after the
    end of the batch become padding: all of them with `pad_to_full`, else one if the rank has no other row."""
    num_rows = min(max(size - offset, 0), wanted)
    num_padding = wanted - num_rows if pad_to_full else int(not num_rows)
    filler = start + offset + num_rows - 1 if num_rows else start
    return RankChunk(start + offset, num_rows, num_padding, filler)


def evaluation_chunks(
    num_positions: int, batch_size: int, num_ranks: int, dp_rank: int, pad_to_full: bool
) -> list[RankChunk]:
    """Return the rows and the padding of a data-parallel rank in each batch of an evaluation of `num_positions`
    samples.

    `batch_size`: how many rows a rank has in a batch. Every rank has the same number of batches. `pad_to_full`: each
    batch of a rank is padded to `batch_size` rows.
    """
    return [
        _rank_chunk(start, num_positions - start, dp_rank * batch_size, batch_size, pad_to_full)
        for start in range(0, num_positions, batch_size * num_ranks)
    ]
