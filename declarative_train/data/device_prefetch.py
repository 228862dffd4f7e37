"""Copies of batches to a GPU while it computes: a thread pins them and copies them on its own CUDA stream.

    for batches in copy_ahead(make, 0, 100, device): ...

On the computing stream, a copy would wait for the kernels before it, and later kernels for the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeGuard

from declarative_train.data import prefetch
from declarative_train.data.batch import Batch, move_batch, unpack_batch

if TYPE_CHECKING:
    import torch


def is_gpu(device: torch.device | None) -> TypeGuard[torch.device]:
    """Return whether copies to the device can run while it computes."""
    return device is not None and device.type == "cuda"


def from_workers(
    made: Iterator[list[Batch]], first: int, count: int, device: torch.device | None
) -> Iterator[list[Batch]]:
    """Yield the batches of loader processes on the device."""
    return from_host(([unpack_batch(batch) for batch in batches] for batches in made), first, count, device)


def from_host(
    made: Iterator[list[Batch]], first: int, count: int, device: torch.device | None
) -> Iterator[list[Batch]]:
    """Yield `count` results of `made` on the device; for a GPU, a thread fetches and copies them ahead."""
    if is_gpu(device) and count:
        yield from copy_ahead(in_thread(made), first, count, device)
        return
    for batches in made:
        yield [move_batch(batch, device) for batch in batches]


def copy_ahead(
    make: Callable[[int], list[Batch]], first: int, count: int, device: torch.device
) -> Iterator[list[Batch]]:
    """Yield `make(first)`, `make(first + 1)`, ... on the device, made and copied ahead by a thread."""
    import torch

    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(number: int) -> tuple[list[Batch], Any]:
        torch.cuda.set_device(device)  # a thread begins on GPU 0, where leaving the stream would make a context
        made = make(number)
        with torch.cuda.stream(stream):
            batches = [move_batch(batch, device) for batch in made]
            return batches, stream.record_event()

    ahead = prefetch.ahead(copy, first, count)
    try:
        for batches, event in ahead:
            yield wait_for_copies(batches, event, device)
    finally:
        if isinstance(ahead, Generator):
            ahead.close()


def wait_for_copies(batches: list[Batch], event: Any, device: torch.device) -> list[Batch]:
    """Let the computing stream wait for the copies, and keep their memory until it has used them.

    The memory belongs to the copying stream, which could otherwise reuse it too early.
    """
    import torch

    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for batch in batches:
        for tensor in (*batch.tensors.values(), batch.row_weight):
            if tensor is not None:
                tensor.record_stream(stream)
    return batches


def in_thread(made: Iterator[list[Batch]]) -> Callable[[int], list[Batch]]:
    """Return a function that takes the batches of loader processes, for use in a thread.

    The processes are forked here: a fork while another thread computes may inherit a lock that is never released.
    """
    waiting = [next(made)]

    def take(_: int) -> list[Batch]:
        return waiting.pop() if waiting else next(made)

    return take
