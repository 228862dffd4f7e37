"""The `replicate` axis: a copy of the model on each rank, with averaged gradients.

torch's DistributedDataParallel sends gradients during the backward. A model that fits in one of its buckets gains
nothing from that: after a first MiB its reducer waits for the end of the backward, and costs a small step a tenth of
its time. The gradients of such models are sent afterwards, in one message together with the losses.

A pipeline uses no wrapper: torch's reducer misses the gradients of schedules that split backward, so they are averaged
in flat buckets after the schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from declarative_train.engine.axes.gradient_sync import GradientSync
from declarative_train.engine.step.precision import reduce_dtype
from declarative_train.graph.build import direct

if TYPE_CHECKING:
    from declarative_train.engine.collectives import Alone, MeshPosition, Ranks
    from declarative_train.engine.step.model import BuiltModel
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.step_runner import StepRunner, Sums
    from declarative_train.plan.plan import Plan

BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel, whose first bucket of 1 MiB is sent early
WIDEST_BYTES = 8  # of a number
UNDER_WAY = 2  # maximum of buckets in flight, in addition to the one being filled

# running statistics are averaged, not broadcast from rank 0 in every forward; the argument was renamed in torch 2.13
_WORDS = signature(nn.parallel.DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _WORDS else "broadcast_buffers": False
}


def replicate(plan: Plan, held: BuiltModel, place: MeshPosition, runner: StepRunner) -> GradientSync:
    """Return the sync between whole copies of the model, or of the stages of a pipeline."""
    in_pipeline, dtype = plan.layout.pipeline is not None, reduce_dtype(plan.training)
    trained = [item for item in held.model.parameters() if item.requires_grad]
    is_one = not in_pipeline and are_one_bucket(trained)
    if in_pipeline or (is_one and dtype != trained[0].dtype):  # a loss sent in that dtype would lose precision

        def in_buckets(optimizers: Optimizers, sums: Sums) -> tuple[Sums, bool]:
            if place.data.size > 1:
                average_gradients(optimizers.gradients(), place.data, dtype)
            return sums, False

        call = held.model if in_pipeline else direct(held.graph_module)
        return GradientSync(call=call, finish=runner.finish, reduce=in_buckets, is_replicated=not in_pipeline)
    if is_one:

        def in_one(optimizers: Optimizers, sums: Sums) -> tuple[Sums, bool]:
            return average_with_sums(optimizers.whole_gradients(), sums, place.data), True

        return GradientSync(call=direct(held.graph_module), finish=runner.finish, reduce=in_one, is_replicated=True)
    model = wrap_in_ddp(held.model, runner.device)
    if dtype == torch.bfloat16:
        model.register_comm_hook(place.data.size, average_in_bf16)

    def begin(num_rows: int | None, is_last: bool) -> None:
        model.require_backward_grad_sync = is_last

    return GradientSync(call=model, finish=runner.finish, begin=begin, is_replicated=True)


def needs_no_ddp(plan: Plan) -> bool:
    """Return whether ranks with whole copies need none of torch's classes that import `torch._dynamo`, which takes each
    rank half a second or more."""
    held = [item.num_elements for item in plan.parameters if not item.frozen and item.tie is None]
    is_plain = not plan.layout.is_sharded and plan.layout.pipeline is None and not plan.training.compile
    return is_plain and sum(held) * WIDEST_BYTES <= BUCKET_BYTES


def wrap_in_ddp(model: nn.Module, device: torch.device) -> nn.parallel.DistributedDataParallel:
    made = nn.parallel.DistributedDataParallel(
        model, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True, **NO_BUFFERS
    )
    settle_buckets(made)
    return made


def average_in_bf16(size, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its classes
    """Average a bucket's gradients over `size` ranks in bfloat16; torch's own hook for this rejects gloo."""
    wide = bucket.buffer()
    work = distributed.all_reduce(wide.to(torch.bfloat16).div_(size), async_op=True)
    assert work is not None

    return work.get_future().then(lambda done: wide.copy_(done.value()[0]))


def settle_buckets(wrapped: nn.parallel.DistributedDataParallel) -> None:
    """Run one backward of zeros before the first step, so that all steps of a run, resumed ones included, sum in one
    order.

    The reducer reorders its buckets after its first backward, and the position of a number in a bucket decides the
    order in which three or more ranks are summed. The last parameter comes first, roughly as in a real backward.
    """
    model = wrapped.module
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forward, model.forward = model.forward, lambda zero: torch.stack([item.sum() for item in trained]).sum() * zero
    try:
        wrapped(torch.zeros((), device=trained[0].device)).backward()
    finally:
        model.forward = forward
    for parameter in trained:
        parameter.grad = None


def are_one_bucket(parameters: Iterable[torch.Tensor]) -> bool:
    """Return whether the gradients of these parameters fit in one message."""
    found = list(parameters)
    return sum(item.nbytes for item in found) <= BUCKET_BYTES and len({item.dtype for item in found}) == 1


def average_gradients(
    gradients: Iterable[torch.Tensor], ranks: Alone | Ranks, dtype: torch.dtype | None = None
) -> None:
    """Average gradients in place, in buckets of one dtype: a few large messages instead of many small ones.

    `dtype` is that of the messages, if different. While one bucket is sent, the next is filled and an earlier one is
    copied back.
    """
    under_way: deque[Callable[[], None]] = deque()
    for bucket in buckets(gradients):
        under_way.append(_begin(bucket, ranks, dtype))
        if len(under_way) > UNDER_WAY:
            under_way.popleft()()
    for end in under_way:
        end()


def buckets(gradients: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and (gradient.dtype != bucket[0].dtype or size + gradient.nbytes > BUCKET_BYTES):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


def average_with_sums(gradients: Sequence[torch.Tensor], sums: Sums, ranks: Alone | Ranks) -> Sums:
    """Average gradients in one message together with the losses. Return the `sums` over the ranks, in the gradients'
    dtype."""
    flat = [value for chunk in sums for value in chunk]
    whole = torch.cat([*(gradient.reshape(-1) for gradient in gradients), torch.stack(flat).to(gradients[0].dtype)])
    ranks.sum_(whole)
    added = iter(whole[-len(flat) :].clone().unbind())  # not views, which would keep the gradients until a log
    _take_back(gradients, whole, ranks)
    return [tuple(next(added) for _ in chunk) for chunk in sums]


def _begin(bucket: Sequence[torch.Tensor], ranks: Alone | Ranks, dtype: torch.dtype | None) -> Callable[[], None]:
    """Start to average a bucket; return a function that waits and copies the result back."""
    whole = torch.cat([gradient.reshape(-1) for gradient in bucket]).to(dtype or bucket[0].dtype)
    end = ranks.begin_sum_(whole)

    def take_back() -> None:
        end()
        _take_back(bucket, whole, ranks)

    return take_back


def _take_back(gradients: Sequence[torch.Tensor], whole: torch.Tensor, ranks: Alone | Ranks) -> None:
    whole /= ranks.size
    sizes = [gradient.numel() for gradient in gradients]
    parts = torch.split(whole[: sum(sizes)], sizes)
    torch._foreach_copy_(list(gradients), [part.view_as(old) for part, old in zip(parts, gradients, strict=True)])
