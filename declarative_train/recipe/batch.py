"""The batch words: global_batch_size = data-parallel size x accumulation x microbatch size x pipeline microbatches."""

from __future__ import annotations

from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.parallelism import Fsdp, Parallelism, Pipeline, Single
from declarative_train.recipe.sections.training import Training


def data_parallel_size(parallelism: Parallelism, layout: Layout) -> int:
    """Ranks (in dp: devices) that take different samples of one batch."""
    if isinstance(parallelism, Single):
        return 1
    if isinstance(parallelism, Pipeline):
        return parallelism.data_parallel.size if parallelism.data_parallel is not None else 1
    return layout.num_gpus


def num_pipeline_ranks(parallelism: Pipeline, layout: Layout) -> int | None:
    """Ranks of one pipeline, or None when the GPUs do not divide."""
    ranks, rest = divmod(layout.num_gpus, data_parallel_size(parallelism, layout))
    return None if rest or not ranks else ranks


def num_microbatches(parallelism: Parallelism) -> int:
    return parallelism.microbatches if isinstance(parallelism, Pipeline) else 1


def accumulation(training: Training, parallelism: Parallelism, layout: Layout) -> int | None:
    """Gradient accumulation steps, or None when the batch does not divide."""
    share = data_parallel_size(parallelism, layout) * num_microbatches(parallelism)
    if training.microbatch_size is not None:
        steps, rest = divmod(training.global_batch_size, share * training.microbatch_size)
        return None if rest or not steps else steps
    steps = training.gradient_accumulation_steps or 1
    return None if training.global_batch_size % (share * steps) else steps


def shards(parallelism: Fsdp, layout: Layout) -> int | None:
    """Ranks over which each parameter is sharded, or None when the replicas do not divide."""
    size, rest = divmod(layout.num_gpus, parallelism.replicate)
    return None if rest or not size else size
