"""What torch's caching allocator on a GPU would ask the device for, of a step's storages in their order: blocks in
segments, rounded up, split and joined again, as https://pytorch.org/docs/stable/notes/cuda.html and the comments of
c10/cuda/CUDACachingAllocator.cpp tell. A simulation: nothing here was run on a GPU.

What fsdp gathers is made on a stream of its own, and such blocks are not handed to another stream.
"""

from __future__ import annotations

from dataclasses import dataclass

from declarative_train.planner.footprint.live_bytes import GATHERED, LiveBytes, Storage

MIB = 1 << 20
LEAST = 512  # bytes: every block is a multiple of it
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
MIDDLE, MIDDLE_SEGMENT = 10 * MIB, 20 * MIB
LARGE_STEP = 2 * MIB  # larger segments are multiples of it


@dataclass(slots=True, eq=False)
class Block:
    """A part of a segment, between its neighbours there."""

    size: int
    before: Block | None = None
    after: Block | None = None
    is_free: bool = True


class Allocator:
    """`reserved` bytes of segments; nothing is given back."""

    def __init__(self) -> None:
        self.reserved = 0
        self._free: dict[tuple[object, bool], list[Block]] = {}

    def take(self, num_bytes: int, stream: object) -> Block:
        size = _up(max(num_bytes, 1), LEAST)
        is_small = size <= SMALL
        free = self._free.setdefault((stream, is_small), [])
        block = min((each for each in free if each.size >= size), key=lambda each: each.size, default=None)
        if block is None:
            block = Block(_segment(size))
            self.reserved += block.size
        else:
            free.remove(block)
        rest = block.size - size
        if rest >= LEAST if is_small else rest > SMALL:
            left = Block(rest, before=block, after=block.after)
            if block.after is not None:
                block.after.before = left
            block.size, block.after = size, left
            free.append(left)
        block.is_free = False
        return block

    def give(self, block: Block, num_bytes: int, stream: object) -> None:
        free = self._free[stream, _up(max(num_bytes, 1), LEAST) <= SMALL]
        block.is_free = True
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                free.remove(other)
                block.size += other.size
                if other is block.before:
                    block.before = other.before
                    if other.before is not None:
                        other.before.after = block
                else:
                    block.after = other.after
                    if other.after is not None:
                        other.after.before = block
        free.append(block)


def reserved(live: LiveBytes, num_steps: int = 3) -> int:
    """Bytes of the segments after so many steps like the one that was counted. What it leaves, its gradients for the
    most part, goes when the next one begins."""
    begun = live.operations[0][1] - 1  # what was there before it
    allocator = Allocator()
    held: dict[int, tuple[Block, int, bool]] = {}

    def change(stored: Storage, more: int) -> None:
        stream, size = stored.kind == GATHERED, more
        if id(stored) in held:
            size += let_go(id(stored))
        if size > 0:
            held[id(stored)] = allocator.take(size, stream), size, stream

    def let_go(key: int) -> int:
        block, size, stream = held.pop(key)
        allocator.give(block, size, stream)
        return size

    for stored, more in live.changes[:begun]:
        change(stored, more)
    there = set(held)
    for _ in range(num_steps):
        for key in held.keys() - there:
            let_go(key)
        for stored, more in live.changes[begun:]:
            change(stored, more)
    return allocator.reserved


def _segment(size: int) -> int:
    if size <= SMALL:
        return SMALL_SEGMENT
    return MIDDLE_SEGMENT if size < MIDDLE else _up(size, LARGE_STEP)


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
