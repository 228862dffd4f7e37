"""Mistakes planted in the modes, as the engine could have them, each with a cell of the parity table to run: those of
the `tensor` axis (`tests/test_tensor_mistakes.py`), and those of the other axes, of accumulation and of the scale.

A plant must change nothing in one process, which is the reference.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import distributed

from declarative_train.components.layers.modules import divided
from declarative_train.engine.axes import (
    cross_stage_ties,
    expert,
    pipeline,
    replicate,
    shard,
    single_process_dp,
)
from declarative_train.engine.engine import Engine
from declarative_train.engine.step import optimizers, scale, step_runner
from declarative_train.graph import initialise
from tests.test_tensor_mistakes import MISTAKES, Plant

DDP = "ddp, 2 ranks, accumulation 2, masked, plain"
FSDP = "fsdp, 2 ranks, accumulation 2, masked, plain"
HYBRID = "fsdp, hybrid 2 x 2 ranks, accumulation 2, masked, plain"
DP = "dp, 2 devices, accumulation 2, masked, plain"
STAGES = "pipeline 1f1b, 2 ranks, accumulation 2, masked, plain"
V = "pipeline zbv, 2 ranks, accumulation 2, masked, plain"
STAGES_X_DDP = "pipeline 1f1b x ddp, 2 x 2 ranks, accumulation 2, masked, plain"
SHARED = "pipeline 1f1b, 2 ranks, accumulation 2, masked, shared, clipped"
SEQUENCE = "sequence tensor, 2 ranks, accumulation 2, masked, divided"
MIXES = "ddp, 2 ranks, accumulation 1, uneven, mixes, over 16"
EXPERT = "expert, 2 ranks, accumulation 2, masked, moe"
PACKED = "sequence tensor, 2 ranks, accumulation 2, masked, packed"


MIXES = "ddp, 2 ranks, accumulation 1, uneven, mixes, over 16"


@dataclass(frozen=True)
class Bug:
    """Planted mistake. `found`: how the first difference must begin: its kind, and what it must name."""

    cell: str
    plant: Plant
    found: str


def in_ranks(owner: Any, name: str, wrong: Callable[..., Any]) -> Plant:
    """Replace a function in ranks only; `wrong` gets the right one first."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = getattr(owner, name)

        def call(*args: Any, **more: Any) -> Any:
            return wrong(right, *args, **more) if distributed.is_initialized() else right(*args, **more)

        monkeypatch.setattr(owner, name, call)

    return plant


def _scales_by_rank(right: Any, self: Any, *args: Any) -> Any:
    factors, counts = right(self, *args)
    return [factor * (1 + distributed.get_rank()) for factor in factors], counts


def _local_counts(right: Any, self: Any, chunks: Any) -> Any:
    counts = [self._objective.counts(chunk.tensors, chunk.row_weight, chunk.num_rows) for chunk in chunks]
    mine = scale.sum_of(counts)
    return list((self._weights / self._dp_size / mine).to(self._dtype).unbind()), self._ranks.sum(mine)


def _hook(hook: Callable[..., Any]) -> Plant:
    def wrong(right: Any, *args: Any) -> Any:
        made = right(*args)
        made.register_comm_hook(None, hook)
        return made

    return in_ranks(replicate, "wrap_in_ddp", wrong)


def _sum(state: Any, bucket):  # type: ignore[no-untyped-def]  # torch compares annotations with its classes
    work = distributed.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def _half(state: Any, bucket):  # type: ignore[no-untyped-def]
    whole: torch.Tensor = bucket.buffer()
    part = whole[: len(whole) // 2].clone().div_(2)
    work = distributed.all_reduce(part, async_op=True)

    def take(done: Any) -> torch.Tensor:
        whole[: len(whole) // 2] = done.value()[0]
        return whole

    return work.get_future().then(take)


def _keeps_own(state: Any, bucket):  # type: ignore[no-untyped-def]
    future: Any = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def _begins(change: Callable[[Any, int | None, bool], None]) -> Plant:
    """Change what happens before a chunk."""

    def wrong(right: Any, plan: Any, held: Any, place: Any, runner: Any) -> Any:
        made = right(plan, held, place, runner)

        def begin(num_rows: int | None, is_last: bool) -> None:
            made.begin(num_rows, is_last)
            for root in held.roots:
                change(root, num_rows, is_last)

        return replace(made, begin=begin)

    return in_ranks(shard, "shard", wrong)


def _first_chunk_lost(right: Any, self: Any, step: int, position: int, chunk: Any, factors: Any, call: Any) -> Any:
    return right(self, step, position, chunk, [factor * (position > 0) for factor in factors], call)


def _scale_gradients(right: Any, *args: Any) -> Any:
    made = right(*args)
    made._scale_grads = made.scale_grads = True
    return made


def _roll_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipeline.PipelineDriver.run

    def run(self: Any, step: int, chunks: Any, factors: Any) -> Any:
        chunks = [*chunks[1:], chunks[0]]
        return right(self, step, chunks, factors)

    monkeypatch.setattr(pipeline.PipelineDriver, "run", run)


def _first_loss(right: Any, self: Any, outputs: Any, rows: Any) -> Any:
    return right(self, outputs, rows - rows[0])


def _rounds_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = pipeline.StageForward.bind

    def bind(self: Any, module: Any) -> None:
        right(self, module)
        forward = module.forward

        def round_outputs(*wires: Any, **entries: Any) -> Any:
            return tuple(
                each.float().to(each.dtype) if each.is_floating_point() else each for each in forward(*wires, **entries)
            )

        module.forward = round_outputs

    monkeypatch.setattr(pipeline.StageForward, "bind", bind)


def _twice(right: Any, self: Any) -> None:
    right(self)
    right(self)


def _sums_in_buckets(right: Any, gradients: Any, ranks: Any, dtype: Any = None) -> None:
    gradients = list(gradients)
    right(gradients, ranks, dtype)
    torch._foreach_mul_(gradients, ranks.size)


def _reverse_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    right = single_process_dp.Replicas._scatter
    monkeypatch.setattr(single_process_dp.Replicas, "_scatter", lambda self, inputs: right(self, inputs)[::-1])


def _own_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = SimpleNamespace(deepcopy=lambda model, memo: copy.deepcopy(model))
    monkeypatch.setattr(single_process_dp, "copy", apart)


def _decays(right: Any, self: Any) -> None:
    for part in self._parts:
        for group in part.param_groups:
            group["weight_decay"] = group.get("weight_decay", 0.0) + 0.1
    right(self)


def _exchange(name: str, ahead: str, back: str) -> Plant:
    """Replace both directions of a function of the tokens."""

    def wrong(self: Any, x: torch.Tensor) -> torch.Tensor:
        ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "gather": self._peers.gather_tokens,
            "sum": self._peers.sum_tokens,
            "own": lambda whole: self._own(whole, 1),
            "first": lambda whole: whole.chunk(self.size, 1)[0].contiguous(),
        }
        return divided.exchange(x, ways[ahead], ways[back])

    return lambda monkeypatch: monkeypatch.setattr(divided.TensorRanks, name, wrong)


OTHERS: dict[str, Bug] = {
    "a rank scales twice": Bug(DDP, in_ranks(scale.Scale, "of", _scales_by_rank), "gradient of `logits"),
    "a chunk is left out": Bug(
        DDP, in_ranks(Engine, "step", lambda right, self, step, given, **more: right(self, step, given[:1], **more)),
        "divisor of `loss`",
    ),
    "ranks divide by their own counts": Bug(
        DDP, in_ranks(scale.Scale, "_from_counts", _local_counts), "gradient of `logits"
    ),
    "gradients are summed, not averaged": Bug(DDP, _hook(_sum), "gradient of `logits"),
    "half a bucket is reduced": Bug(DDP, _hook(_half), "gradient of `"),
    "gradients are not reduced": Bug(DDP, _hook(_keeps_own), "gradient of `logits"),
    "sharded gradients are not reduced over replicas": Bug(
        HYBRID, _begins(lambda root, rows, last: root.set_requires_all_reduce(False)), "gradient of `logits"
    ),
    "shards are never reduced": Bug(
        FSDP, _begins(lambda root, rows, last: root.set_requires_gradient_sync(False)), "gradient of `logits"
    ),
    "the first chunk of shards is lost": Bug(
        FSDP, in_ranks(step_runner.StepRunner, "run", _first_chunk_lost), "gradient of `logits"
    ),
    "the first chunk of replicas is lost": Bug(
        DDP, in_ranks(step_runner.StepRunner, "run", _first_chunk_lost), "gradient of `logits"
    ),
    "shards start as the first one": Bug(
        FSDP, in_ranks(initialise, "local_rows", lambda right, tensor: right(tensor)._replace(first=0)),
        "start value of `embed.weight`",
    ),
    "a schedule divides by its microbatches": Bug(
        STAGES, in_ranks(pipeline.PipelineDriver, "_make_schedule", _scale_gradients), "gradient of `logits"
    ),
    "stages read other microbatches": Bug(STAGES, _roll_chunks, "output of `embed`"),
    "the loss reads the first microbatch": Bug(
        STAGES, in_ranks(pipeline.ScheduleLoss, "__call__", _first_loss), "loss of `loss`"
    ),
    "stages send float32": Bug(STAGES, _rounds_outputs, "output of `layers.4.norm`"),
    "a V sends float32": Bug(V, _rounds_outputs, "output of `layers.2.norm`"),
    "copies on stages are not summed": Bug(
        SHARED, in_ranks(cross_stage_ties.SharedParameters, "add_up", lambda right, self: None),
        "gradient of `b.weight`",
    ),
    "copies on stages are summed twice": Bug(
        SHARED, in_ranks(cross_stage_ties.SharedParameters, "add_up", _twice), "gradient of `b.weight`"
    ),
    "copies on stages count twice in the norm": Bug(
        SHARED,
        in_ranks(cross_stage_ties.SharedParameters, "without_copies", lambda right, self, gradients: list(gradients)),
        "gradient norm of `all parameters`",
    ),
    "stages do not average": Bug(
        STAGES_X_DDP, in_ranks(replicate, "average_gradients", lambda right, *args: None), "gradient of `logits"
    ),
    "stages sum, not average": Bug(
        STAGES_X_DDP, in_ranks(replicate, "average_gradients", _sums_in_buckets), "gradient of `logits"
    ),
    "replicas get rows in reverse": Bug(DP, _reverse_slices, "output of `embed`"),
    "replicas have their own parameters": Bug(DP, _own_parameters, "gradient of `logits"),
    "ranks have another lr": Bug(
        DDP, in_ranks(optimizers.Optimizers, "set_lr_factor", lambda right, self, factor: right(self, 2 * factor)),
        "update of `embed.weight`",
    ),
    "running statistics are not summed": Bug(
        MIXES,
        in_ranks(
            step_runner,
            "end_step",
            lambda right, model, ranks, finite: right(model, SimpleNamespace(sum=lambda each: each), finite),
        ),
        "statistic of `norm.running_mean`",
    ),
    "shards decay": Bug(FSDP, in_ranks(optimizers.Optimizers, "step", _decays), "update of `embed.weight`"),
    "experts are divided by their copies alone": Bug(
        EXPERT,
        in_ranks(expert, "sync_experts", lambda right, *args: replace(right(*args), reduce=args[1].reduce)),
        "gradient of `",
    ),
    "a rank keeps the first tokens": Bug(PACKED, _exchange("own_tokens", "first", "gather"), "output of `"),
    "gathered tokens lose gradients": Bug(SEQUENCE, _exchange("gather_tokens", "gather", "own"), "gradient of `"),
    "copied tokens sum gradients": Bug(PACKED, _exchange("copy_tokens", "gather", "sum"), "gradient of `"),
}  # fmt: skip
# not the one that ends in a crash, which names no node
BUGS = {
    name: Bug(cell, plant, "") for name, (cell, plant) in MISTAKES.items() if name != "the data are divided too"
} | OTHERS
