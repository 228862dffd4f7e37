"""Rules about run length, batches and precision.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.batch import data_parallel_size, num_microbatches
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.training import share_of_run


def uneven_batch(draft: Draft) -> Iterator[Diagnostic]:
    """uneven-batch (R003)

    Finds: a global batch size that cannot be divided evenly over ranks, accumulation steps and microbatches.
    Why:   sizes are not rounded: a step uses exactly the batch size of the recipe.
    Diff:
        training:
    -     global_batch_size: 100
    +     global_batch_size: 120
          gradient_accumulation_steps: 3
    """
    training, parallelism, layout = draft.training, draft.parallelism, draft.layout
    if training is None or parallelism is None or layout is None:
        return
    size = training.global_batch_size
    ranks, chunks = data_parallel_size(parallelism, layout), num_microbatches(parallelism)
    word = "device" if parallelism.scatters else "data-parallel rank"
    if training.microbatch_size is not None:
        key, own = "microbatch_size", training.microbatch_size
        middle = f"{format_count(own, 'sample')} per microbatch"
    else:
        key, own = "gradient_accumulation_steps", training.gradient_accumulation_steps or 1
        middle = format_count(own, "accumulation step")
    parts = [(ranks, format_count(ranks, word)), (own, middle), (chunks, format_count(chunks, "pipeline microbatch"))]
    unit = prod(number for number, _ in parts)
    if size % unit == 0:
        return
    over = " x ".join(text for number, text in parts if number > 1)
    total = f" = {unit}" if sum(number > 1 for number, _ in parts) > 1 else ""
    hint = f"set training.global_batch_size to {_either(_multiples(size, unit))}"
    share, rest = divmod(size, ranks * chunks)
    if not rest and own > 1:
        hint += f", or training.{key} to {_either(_divisors_near(share, own))}"
    yield error(
        "R003", draft.span("training.global_batch_size"), f"{size} cannot be divided evenly over {over}{total}", hint
    )


def _multiples(size: int, unit: int) -> list[int]:
    below = size // unit * unit
    return [value for value in (below, below + unit) if value]


def _divisors_near(number: int, wanted: int) -> list[int]:
    """Return the divisors of `number` that are nearest to `wanted`: the largest one below it and the smallest one above
    it. The list has at most two numbers."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    divisors = sorted({*small, *(number // divisor for divisor in small)})
    below = [divisor for divisor in divisors if divisor < wanted][-1:]
    above = [divisor for divisor in divisors if divisor > wanted][:1]
    return below + above


def _either(values: list[int]) -> str:
    return " or ".join(str(value) for value in values)


def no_run_length(draft: Draft) -> Iterator[Diagnostic]:
    """no-run-length (R004)

    Finds: a training section with neither `epochs` nor `steps`.
    Why:   the learning-rate schedule and all durations in % depend on the length of the run.
    Diff:
        training:
    -     epochs: null
    +     epochs: 5
    """
    training = draft.training
    if draft.is_written("training.epochs") or draft.is_written("training.steps"):
        return  # another rule reports an empty section
    if training is not None and training.epochs is None and training.steps is None:
        hint = "add `epochs: 10` or `steps: 1000`"
        yield error("R004", draft.span.key("training"), "`training` does not set a length", hint, rests_on="all files")


def warmup_longer_than_run(draft: Draft) -> Iterator[Diagnostic]:
    """warmup-longer-than-run (R005)

    Finds: a warm-up that is as long as the run, or longer.
    Why:   the learning rate would never reach the value in the recipe.
    Diff:
        training:
          epochs: 5
    -     lr_schedule: {type: cosine, warmup: 10 epochs}
    +     lr_schedule: {type: cosine, warmup: 1 epoch}
    """
    training = draft.training
    if training is None or training.lr_schedule.warmup is None:
        return
    share = share_of_run(training.lr_schedule.warmup, training)
    if share is not None and share >= 1:
        length = "epochs" if training.epochs is not None else "steps"
        message = f"a warm-up of {training.lr_schedule.warmup} takes the whole run"
        hint = "shorten it, for example to `5%`"
        related = (Related(draft.span(f"training.{length}"), "the length of the run"),)
        yield error("R005", draft.span("training.lr_schedule.warmup"), message, hint, related)


def narrow_reduction(draft: Draft) -> Iterator[Diagnostic]:
    """narrow-reduction (R007)

    Finds: a run that computes in fp64 but reduces gradients in fp32 or bf16.
    Why:   the reduction would round the gradients, so the precision of fp64 would be lost.
    Diff:
        training:
    -     precision: {compute: fp64, reduce: fp32}
    +     precision: {compute: fp64}
    """
    precision = None if draft.training is None else draft.training.precision
    if precision is not None and precision.compute == "fp64" and precision.reduce is not None:
        span = draft.span("training.precision.reduce")
        said = f"`reduce: {precision.reduce}` with `compute: fp64` rounds the gradients"
        yield error("R007", span, said, "remove `reduce`: gradients are then reduced in fp64")
