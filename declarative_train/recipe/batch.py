"""Batch sizes: global_batch_size = data-parallel size x accumulation x microbatch size x pipeline microbatches."""

from __future__ import annotations

from declarative_train.core.mesh import Axis, size_of
from declarative_train.recipe.sections.layout import Layout
from declarative_train.recipe.sections.parallelism import Auto, Parallelism
from declarative_train.recipe.sections.training import Training


def data_parallel_size(parallelism: Parallelism, layout: Layout) -> int:
    """Return how many ranks process different samples of one batch. The mode `dp` has a single rank with several
    devices; for it, return the number of devices."""
    return parallelism.data_parallel_size(layout.num_gpus)


def num_pipeline_ranks(parallelism: Parallelism | None, layout: Layout) -> int | None:
    """Return the number of ranks on the axis `pipeline`, 1 if the mesh has no such axis. Return None if `parallelism`
    is None, or if its axes do not fit the number of GPUs."""
    mesh = None if parallelism is None else parallelism.mesh(layout.num_gpus)
    return None if mesh is None else size_of(mesh, "pipeline")


def num_microbatches(parallelism: Parallelism) -> int:
    return parallelism.microbatches


def accumulation(training: Training, parallelism: Parallelism | None, layout: Layout) -> int | None:
    """Return the number of gradient accumulation steps. None if `parallelism` is None (not known yet), or if the global
    batch cannot be divided evenly between ranks, accumulation steps and microbatches.
    """
    if parallelism is None:
        return None
    share = data_parallel_size(parallelism, layout) * num_microbatches(parallelism)
    if training.microbatch_size is not None:
        steps, rest = divmod(training.global_batch_size, share * training.microbatch_size)
        return None if rest or not steps else steps
    steps = training.gradient_accumulation_steps or 1
    return None if training.global_batch_size % (share * steps) else steps


def has_axis(parallelism: Parallelism | Auto, layout: Layout, name: Axis) -> bool:
    """Return whether the mesh has the axis `name`, also if its size is 1. False if the axes do not fit the number of
    GPUs, and for `parallelism: auto`, which has no mesh yet.
    """
    return any(axis.name == name for axis in parallelism.mesh(layout.num_gpus) or ())


def num_shards(parallelism: Parallelism | Auto, layout: Layout) -> int:
    """Return the number of ranks over which each parameter is sharded. It is 1 if parameters are not sharded, and for
    `parallelism: auto`.
    """
    return size_of(parallelism.mesh(layout.num_gpus) or (), "shard")
