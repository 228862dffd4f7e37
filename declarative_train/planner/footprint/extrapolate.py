"""Extrapolation of the memory of a step from traces with 3 and 4 copies of a block to any number of copies.

Live memory at any moment grows linearly with the number of copies. Operations of the two traces are matched by their
distance from the beginning or end of a pass; the difference of their live bytes is the memory of one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.planner.footprint.live_bytes import KINDS

if TYPE_CHECKING:
    from declarative_train.planner.footprint.live_bytes import LiveBytes

FEW = 3  # copies: the first, one in the middle, the last


class UnevenError(Exception):
    """Error: the memory of a step cannot be extrapolated to more blocks, because two traces with different numbers of
    blocks differ by more than the additional blocks."""


Passes = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class MemoryTrace:
    """Live memory during a traced step. A pass is a part of the step, such as a forward or a backward.

    passes   for each pass, the names of its operations
    bytes    array (operations, classes of memory) of the live bytes after each operation
    merged   like `passes`, but consecutive passes of the same type are joined into one
    """

    passes: Passes
    bytes: Any
    merged: Passes = ()


def memory_trace(live: LiveBytes) -> MemoryTrace:
    kinds = np.array([stored.kind for stored, _ in live.changes], dtype=np.int64)
    more = np.array([change for _, change in live.changes], dtype=np.int64)
    steps = np.zeros((len(more) + 1, KINDS), dtype=np.int64)
    steps[np.arange(1, len(more) + 1), kinds] = more
    levels = steps.cumsum(axis=0)
    ends = np.array([end for _, end, _ in live.operations], dtype=np.int64)
    each = groupby(live.operations, key=lambda operation: operation[2])
    of_a_kind = groupby(live.operations, key=lambda operation: operation[2][0])
    passes, merged = (tuple(tuple(name for name, *_ in part) for _, part in parts) for parts in (each, of_a_kind))
    return MemoryTrace(passes, levels[ends], merged)


def extrapolate(base: MemoryTrace, longer: Sequence[MemoryTrace], copies: Sequence[int]) -> Any:
    """Return the live bytes after each operation of a step of a model with many copies of its blocks, extrapolated from
    traces with few copies. The result is a float array (operations of `base`, classes of memory).

    `base`: trace with `FEW` copies in each chain of blocks. `longer[i]`: trace with one more copy in chain i only.
    `copies[i]`: number of copies that chain i has in the model. Raises UnevenError.
    """
    found = base.bytes.astype(np.float64)
    for course, number in zip(longer, copies, strict=True):
        found = found + (number - FEW) * _growth(base, course)
    return found


def _growth(base: MemoryTrace, longer: MemoryTrace) -> Any:
    """Return the bytes that one more copy of a block adds at each operation of the trace `base`, as an array
    (operations, classes of memory). `longer`: a trace with this copy. Raises UnevenError if the operations of the two
    traces do not match."""
    try:
        return _growth_by_pass(base.passes, longer.passes, base, longer)
    except UnevenError:  # in a split backward a copy may have passes of its own
        return _growth_by_pass(base.merged, longer.merged, base, longer)


def _growth_by_pass(fewer: Passes, more: Passes, base: MemoryTrace, longer: MemoryTrace) -> Any:
    if not fewer or len(fewer) != len(more):
        raise UnevenError
    parts, here, there = [], 0, 0
    for short, long in zip(fewer, more, strict=True):
        now, then = base.bytes[here : here + len(short)], longer.bytes[there : there + len(long)]
        parts.append(_growth_in_pass(short, long, now, then))
        here, there = here + len(short), there + len(long)
    return np.concatenate(parts)


def _growth_in_pass(short: Sequence[str], long: Sequence[str], now: Any, then: Any) -> Any:
    more = len(long) - len(short)
    if more < 0:
        raise UnevenError
    if more == 0:
        if short != long:
            raise UnevenError
        return then - now
    ahead, behind = _common(short, long), _common(short[::-1], long[::-1])
    # the last copy of the shorter step is in the place of a middle one of the longer step; likewise from the end
    first, last = max(0, ahead - more), min(len(short), len(short) - behind + more)
    if last > first:
        raise UnevenError
    front, back = then[:first] - now[:first], then[last + more :] - now[last:]
    found = np.zeros_like(now)
    found[:first] = front
    found[first:] = back[first - last :]
    both = slice(last, first)
    larger = back[: first - last].sum(axis=1) > front[last:].sum(axis=1)
    found[both] = np.where(larger[:, None], back[: first - last], front[last:])
    return found


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    number = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        number += 1
    return number
