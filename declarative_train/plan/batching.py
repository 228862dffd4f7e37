"""The recipe's batch words and the size of the training set -> BatchSpec, and the length of the run in steps."""

from __future__ import annotations

from math import ceil

from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.plan.checks.samples import batch_larger_than_data
from declarative_train.recipe.batch import accumulation, data_parallel_size, has_axis, num_microbatches
from declarative_train.recipe.recipe import Recipe


def batch_of(recipe: Recipe, data: DataSpec) -> tuple[BatchSpec | None, list[Diagnostic]]:
    """The recipe's rules have seen that everything divides (R003, P001)."""
    training, parallelism, layout = recipe.training, recipe.mode, recipe.layout
    num_samples = data.set("training").num_samples
    size = training.global_batch_size
    drops = data.last_batch == "drop"
    diagnostics = []
    if size > num_samples:
        span = recipe.span("training.global_batch_size")
        diagnostics.append(batch_larger_than_data(span, size, num_samples, drops=drops))
        if drops:
            return None, diagnostics
    steps = accumulation(training, parallelism, layout)
    assert steps is not None, "R003 stands before this"
    ranks, parts = data_parallel_size(parallelism, layout), num_microbatches(parallelism)
    return BatchSpec(
        global_batch_size=size,
        data_parallel_size=ranks,
        accumulation=steps,
        microbatch_size=size // (ranks * steps * parts),
        num_microbatches=parts,
        steps_per_epoch=num_samples // size if drops else ceil(num_samples / size),
        pad_to_full=has_axis(parallelism, layout, "pipeline") or training.compile,
    ), diagnostics


def num_steps_of(recipe: Recipe, batch: BatchSpec) -> int:
    """Optimizer steps of the run; a part of an epoch rounds up to a whole step."""
    training = recipe.training
    if training.steps is not None:
        return training.steps
    assert training.epochs is not None, "R004 stands before this"
    return max(1, ceil(round(training.epochs * batch.steps_per_epoch, 9)))
