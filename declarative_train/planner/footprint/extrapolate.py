"""From the counts of a step with 3 and with 4 copies of a repeat to the count with any number of them.

What lives at a moment grows evenly with the number of copies: each operation of the shorter step has one in the longer
step that is as far from the beginning of its pass, or from its end, and the difference between the two is what one copy
brings. The largest of all moments, each carried on to the number of copies wanted, is the peak; between the first and
the last copies it goes up or down evenly, so that no other copy has more.
"""

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
    """The longer step is not the shorter one with a copy more."""


Passes = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Course:
    """Names of the operations, pass by pass (casts, forward, backward, ...); `bytes` (operations, kinds) after each.
    `joined`: passes of a kind that follow each other as one."""

    passes: Passes
    bytes: Any
    joined: Passes = ()


def course_of(live: LiveBytes) -> Course:
    kinds = np.array([stored.kind for stored, _ in live.changes], dtype=np.int64)
    more = np.array([change for _, change in live.changes], dtype=np.int64)
    steps = np.zeros((len(more) + 1, KINDS), dtype=np.int64)
    steps[np.arange(1, len(more) + 1), kinds] = more
    levels = steps.cumsum(axis=0)
    ends = np.array([end for _, end, _ in live.operations], dtype=np.int64)
    each = groupby(live.operations, key=lambda operation: operation[2])
    of_a_kind = groupby(live.operations, key=lambda operation: operation[2][0])
    passes, joined = (tuple(tuple(name for name, *_ in part) for _, part in parts) for parts in (each, of_a_kind))
    return Course(passes, levels[ends], joined)


def extrapolated(base: Course, longer: Sequence[Course], copies: Sequence[int]) -> Any:
    """(operations, kinds), as floats. `longer[i]`: with one copy more of run i, of which there are to be `copies[i]`,
    `FEW` of them in `base`. Raises UnevenError."""
    found = base.bytes.astype(np.float64)
    for course, number in zip(longer, copies, strict=True):
        found = found + (number - FEW) * _brought(base, course)
    return found


def _brought(base: Course, longer: Course) -> Any:
    """(operations, kinds): bytes that a copy more brings to each moment of `base`, the larger one where a moment may
    be counted from either end."""
    try:
        return _brought_in(base.passes, longer.passes, base, longer)
    except UnevenError:  # where backward is cut, for weights alone, a copy may have passes of its own
        return _brought_in(base.joined, longer.joined, base, longer)


def _brought_in(fewer: Passes, more: Passes, base: Course, longer: Course) -> Any:
    if not fewer or len(fewer) != len(more):
        raise UnevenError
    parts, here, there = [], 0, 0
    for short, long in zip(fewer, more, strict=True):
        now, then = base.bytes[here : here + len(short)], longer.bytes[there : there + len(long)]
        parts.append(_brought_in_pass(short, long, now, then))
        here, there = here + len(short), there + len(long)
    return np.concatenate(parts)


def _brought_in_pass(short: Sequence[str], long: Sequence[str], now: Any, then: Any) -> Any:
    more = len(long) - len(short)
    if more < 0:
        raise UnevenError
    if more == 0:
        if short != long:
            raise UnevenError
        return then - now
    ahead, behind = _common(short, long), _common(short[::-1], long[::-1])
    # the last copy of the shorter step stands where the longer one has another in the middle, and so from behind
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
