"""Shuffled order, (seed, epoch, position) -> sample: a pure function, for any number of samples.

Up to 2^16 samples the order is that of 64-bit keys, one per sample: all permutations are equally likely. Beyond, it
is a Feistel network of 4 rounds over the smallest power of two that holds the samples (Luby and Rackoff, How to
construct pseudorandom permutations from pseudorandom functions, 1988), the halves as unequal as they come out (Black
and Rogaway, Ciphers with arbitrary finite domains, 2002), walked along its cycle until it is back inside (the same
paper; at most two steps on average). It needs memory only for the requested positions, and costs least per position
when they are requested in tens of thousands.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from declarative_train.components.counter_rng import key_of, mix

_SORTED = 1 << 16
_ROUNDS = 4
_FOLDS = 4
_FEW = 1 << 12
_AT_ONCE = 1 << 14  # numbers that stay in a cache of the processor


def sample_index(seed: int, epoch: int, positions: np.ndarray, num_samples: int) -> np.ndarray:
    """Return int64 samples at these positions (int64, each in 0..num_samples-1) of the shuffled epoch."""
    return permute(key_of("order", seed, epoch), positions, num_samples)


def permute(key: int, positions: np.ndarray, size: int) -> np.ndarray:
    """Return int64: the images of the positions under the permutation of 0..size-1 that belongs to `key`."""
    if size <= _SORTED:
        order: np.ndarray = _sort_keys(key, size)[positions]
        return order
    return _walk_cycle(key, np.asarray(positions, np.uint64), size)


def shuffle_all(key: int, size: int) -> np.ndarray:
    """Return int64: all of 0..size-1 in an order that belongs to `key`, at a tenth of the cost of `permuted`.

    The numbers below the next power of two are multiplied by odd numbers and their upper halves folded into the lower,
    four times, each a permutation of them, as in the finalisers of hash functions; results of `size` and more are
    dropped.
    """
    if size <= _FEW:
        return _sort_keys(key, size).copy()
    bits = (size - 1).bit_length()
    kind = np.dtype(np.uint32 if bits <= 32 else np.uint64)  # the lower bits of what comes out need no others
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
    """Return a permutation of 0..2^bits-1: each round changes one half by a function of the other."""
    low_bits = np.uint64(bits - bits // 2)
    low_mask, high_mask = (np.uint64((1 << width) - 1) for width in (bits - bits // 2, bits // 2))
    low, high = numbers & low_mask, numbers >> low_bits
    for number in range(_ROUNDS):
        if number % 2:
            low ^= mix(high, key_of(key, number)) & low_mask
        else:
            high ^= mix(low, key_of(key, number)) & high_mask
    return high << low_bits | low
