"""Data parallelism, the `replicate` axis: each rank has a copy of the model, and gradients are averaged over the ranks.

Without a pipeline, torch's DistributedDataParallel averages gradients during the backward. With a pipeline, they are
averaged after the backward, in large flat buckets. DistributedDataParallel would miss gradients there, because some
schedules split the backward."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import distributed, nn

from declarative_train.engine.axes.gradient_sync import GradientSync
from declarative_train.engine.step.precision import reduce_dtype

if TYPE_CHECKING:
    from declarative_train.engine.collectives import Alone, MeshPosition, Ranks
    from declarative_train.engine.step.model_preparation import BuiltModel
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.step_runner import StepRunner
    from declarative_train.plan.plan import Plan

BUCKET_BYTES = 25 << 20  # as in DistributedDataParallel
UNDER_WAY = 2  # buckets that are sent at the same time, while another one is filled

# running statistics are averaged, not broadcast from rank 0 in every forward; the argument was renamed in torch 2.13
_WORDS = signature(nn.parallel.DistributedDataParallel).parameters
NO_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _WORDS else "broadcast_buffers": False
}


def replicate(plan: Plan, built: BuiltModel, position: MeshPosition, runner: StepRunner) -> GradientSync:
    """Return the GradientSync that averages gradients over copies of the model, or of the stages of a pipeline.
    `built`: this rank's part of the model. `position`: this rank's position on the mesh. `runner`: runs forward and
    backward of a chunk (the rows of one forward)."""
    dtype = reduce_dtype(plan.training)
    if plan.layout.pipeline is not None:

        def in_buckets(optimizers: Optimizers) -> None:
            if position.data.size > 1:
                average_gradients(optimizers.gradients(), position.data, dtype)

        return GradientSync(call=built.model, finish=runner.finish, reduce=in_buckets)
    if position.is_traced:
        return GradientSync(call=built.model, finish=runner.finish, is_replicated=True)
    model = wrap_in_ddp(built.model, runner.device, position.data.group)
    if dtype == torch.bfloat16:
        model.register_comm_hook(position.data, average_in_bf16)

    def begin(num_rows: int | None, is_last: bool) -> None:
        model.require_backward_grad_sync = is_last

    return GradientSync(call=model, finish=runner.finish, begin=begin, is_replicated=True)


def wrap_in_ddp(
    model: nn.Module, device: torch.device, group: distributed.ProcessGroup | None
) -> nn.parallel.DistributedDataParallel:
    made = nn.parallel.DistributedDataParallel(
        model,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=group,
        gradient_as_bucket_view=True,
        **NO_BUFFERS,
    )
    settle_buckets(made)
    return made


def average_in_bf16(ranks, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its classes
    """Average the gradients of a bucket over `ranks` in bfloat16. This is a communication hook, which
    DistributedDataParallel calls for each bucket. (torch's own hook for bfloat16 rejects gloo.)"""
    wide = bucket.buffer()
    work = distributed.all_reduce(wide.to(torch.bfloat16).div_(ranks.size), group=ranks.group, async_op=True)
    assert work is not None

    return work.get_future().then(lambda done: wide.copy_(done.value()[0]))


def settle_buckets(wrapped: nn.parallel.DistributedDataParallel) -> None:
    """Run one backward with gradients 0 before the first step, because torch reorders its buckets of gradients after
    the first backward. So all steps, also those of a resumed run, use the same buckets, and sum the gradients of the
    ranks in the same order."""
    model = wrapped.module
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    forward, model.forward = model.forward, lambda zero: torch.stack([item.sum() for item in trained]).sum() * zero
    try:
        wrapped(torch.zeros((), device=trained[0].device)).backward()
    finally:
        model.forward = forward
    for parameter in trained:
        parameter.grad = None


def average_gradients(
    gradients: Iterable[torch.Tensor], ranks: Alone | Ranks, dtype: torch.dtype | None = None
) -> None:
    """Average gradients over ranks, in place. The gradients are joined into buckets, because a few large messages are
    faster than many small ones. Up to `UNDER_WAY` buckets are sent while the next one is filled. `dtype`: dtype of the
    messages; None: that of the gradients."""
    under_way: deque[Callable[[], None]] = deque()
    for bucket in buckets(gradients):
        under_way.append(_begin_average(bucket, ranks, dtype))
        if len(under_way) > UNDER_WAY:
            under_way.popleft()()
    for end in under_way:
        end()


def sum_gradients(gradients: Iterable[torch.Tensor], ranks: Alone | Ranks) -> None:
    """Sum gradients over ranks, in place, in a few large messages."""
    for bucket in buckets(gradients):
        whole = torch.cat([gradient.reshape(-1) for gradient in bucket])
        ranks.sum_(whole)
        for gradient, part in zip(bucket, torch.split(whole, [each.numel() for each in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))


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


def _begin_average(
    bucket: Sequence[torch.Tensor], ranks: Alone | Ranks, dtype: torch.dtype | None
) -> Callable[[], None]:
    """Start to average the gradients in `bucket` over `ranks`. Return a function that waits for the averages and copies
    them into the gradients. `dtype`: dtype in which gradients are sent; None: the dtype that they have."""
    whole = torch.cat([gradient.reshape(-1) for gradient in bucket]).to(dtype or bucket[0].dtype)
    end = ranks.begin_sum_(whole)

    def take_back() -> None:
        end()
        whole.div_(ranks.size)
        for gradient, part in zip(bucket, torch.split(whole, [each.numel() for each in bucket]), strict=True):
            gradient.copy_(part.view_as(gradient))

    return take_back
