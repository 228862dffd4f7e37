"""Batches to a GPU while it computes: a thread puts them into pinned memory and copies them on a stream of its own.

    for batches in copied_ahead(make, 0, 100, device): ...

On the stream that computes, a copy would wait for the kernels before it, and the kernels behind for the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from declarative_train.data import prefetch
from declarative_train.data.batch import Batch, moved, unpacked

if TYPE_CHECKING:
    import torch


def is_gpu(device: torch.device | None) -> TypeGuard[torch.device]:
    """Whether copies to it can go beside what it computes."""
    return device is not None and device.type == "cuda"


def from_workers(
    made: Iterator[list[Batch]], first: int, count: int, device: torch.device | None
) -> Iterator[list[Batch]]:
    """What loader processes make, packed, on the device."""
    return from_host(([unpacked(batch) for batch in batches] for batches in made), first, count, device)


def from_host(
    made: Iterator[list[Batch]], first: int, count: int, device: torch.device | None
) -> Iterator[list[Batch]]:
    """`count` results of `made`, on the device: on a GPU copied ahead by a thread, which also asks for them."""
    if is_gpu(device) and count:
        yield from copied_ahead(in_thread(made), first, count, device)
        return
    for batches in made:
        yield [moved(batch, device) for batch in batches]


def copied_ahead(
    make: Callable[[int], list[Batch]], first: int, count: int, device: torch.device
) -> Iterator[list[Batch]]:
    """`make(first)`, `make(first + 1)`, ... on the device, made and copied ahead by a thread."""
    import torch

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copied(number: int) -> tuple[list[Batch], Any]:
        torch.cuda.set_device(device)  # a thread begins on GPU 0, where leaving the stream would make a context
        made = make(number)
        with torch.cuda.stream(stream):
            batches = [moved(batch, device) for batch in made]
            return batches, stream.record_event()

    ahead = prefetch.ahead(copied, first, count)
    try:
        for batches, event in ahead:
            yield taken_over(batches, event, device)
    finally:
        if isinstance(ahead, Generator):
            ahead.close()


def taken_over(batches: list[Batch], event: Any, device: torch.device) -> list[Batch]:
    """What the computing stream does from here on waits for the copies; and their memory, which belongs to the other
    stream, is not given away before the computing stream has done with it."""
    import torch

    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for batch in batches:
        for tensor in (*batch.tensors.values(), batch.row_weight):
            if tensor is not None:
                tensor.record_stream(stream)
    return batches


def in_thread(made: Iterator[list[Batch]]) -> Callable[[int], list[Batch]]:
    """What loader processes make, for a thread to take. They are forked here: a fork beside a thread that computes may
    take along a lock that nobody lets go."""
    waiting = [next(made)]

    def take(_: int) -> list[Batch]:
        return waiting.pop() if waiting else next(made)

    return take
