"""Rules about run length, batches and optimizers.

Each public function that returns diagnostics is one rule; its docstring is the manual page of its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from declarative_train.components.component import Optimizer
from declarative_train.core.amounts import counted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, error, warning
from declarative_train.core.span import Span
from declarative_train.recipe.batch import data_parallel_size, num_microbatches
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.training import share_of_run


def uneven_batch(draft: Draft) -> Iterator[Diagnostic]:
    """uneven-batch (R003)

    Finds: a global batch that cannot be divided evenly over ranks, accumulation steps and microbatches.
    Why:   sizes are not rounded: a step uses exactly the batch size in the recipe.
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
        middle = f"{counted(own, 'sample')} per microbatch"
    else:
        key, own = "gradient_accumulation_steps", training.gradient_accumulation_steps or 1
        middle = counted(own, "accumulation step")
    parts = [(ranks, counted(ranks, word)), (own, middle), (chunks, counted(chunks, "pipeline microbatch"))]
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
    """Return the closest divisors of `number` below and above `wanted`."""
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
        return  # an empty one is reported by another rule
    if training is not None and training.epochs is None and training.steps is None:
        hint = "add `epochs: 10` or `steps: 1000`"
        yield error("R004", draft.span.key("training"), "`training` does not set a length", hint, rests_on="all files")


def warmup_longer_than_run(draft: Draft) -> Iterator[Diagnostic]:
    """warmup-longer-than-run (R005)

    Finds: a warm-up as long as the run or longer.
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

    Finds: a run in fp64 that reduces gradients in fp32 or bf16.
    Why:   the precision of fp64 would be lost in the reduction.
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


_FAR_ABOVE, _FAR_BELOW = 10, 1e-3


def implausible_lr(draft: Draft) -> Iterator[Diagnostic]:
    """implausible-lr (O013)

    Finds: a learning rate far outside of the usual range of the optimizer, or 0.
    Why:   with ten times the largest usual rate a run diverges in its first steps or learns nothing; with a thousandth
           of the smallest, or with 0, its parameters hardly change, without an error.
    Diff:
        training:
    -     optimizer: {type: adam, lr: 10}
    +     optimizer: {type: adam, lr: 1e-3}
    """
    for optimizer, path, at in optimizers_of(draft):
        lr = getattr(optimizer, "lr", None)
        low, high = optimizer.usual_lr
        usual = f"usual values are {low:g} to {high:g}"
        span = at if path is None else draft.span((*path, "lr"))
        if lr == 0:
            yield warning("O013", span, "an lr of 0: no step changes a parameter", usual)
        elif lr is not None and not low * _FAR_BELOW <= lr <= high * _FAR_ABOVE:
            far = "above" if lr > high else "below"
            yield warning("O013", span, f"an lr of {lr:g} is far {far} the usual range of `{optimizer.type}`", usual)


def optimizers_of(draft: Draft) -> Iterator[tuple[Optimizer, tuple[str, ...] | None, Span]]:
    """Yield every optimizer with its path and span; the path is None for one set inside a block."""
    if draft.training is not None:
        path: tuple[str, ...] = ("training", "optimizer")
        yield draft.training.optimizer, path, draft.span(path)
    for rule in draft.rules:
        if rule.settings.optimizer is not None:
            path = ("model", "parameters", rule.selector, "optimizer")
            yield rule.settings.optimizer, None if rule.prefix else path, rule.span


def swapped_betas(draft: Draft) -> Iterator[Diagnostic]:
    """swapped-betas (O014)

    Finds: `betas` whose first number is larger than the second.
    Why:   the average of the gradient then changes more slowly than that of its square: steps follow outdated
           directions, and training becomes unstable. The two are usually swapped.
    Diff:
        training:
    -     optimizer: {type: adam, lr: 1e-3, betas: [0.999, 0.9]}
    +     optimizer: {type: adam, lr: 1e-3, betas: [0.9, 0.999]}
    """
    for optimizer, path, at in optimizers_of(draft):
        betas = getattr(optimizer, "betas", None)
        if betas is None or betas[0] <= betas[1]:
            continue
        span = at if path is None else draft.span((*path, "betas"))
        turned = f"[{betas[1]:g}, {betas[0]:g}]"
        message = f"`betas` of `{optimizer.type}` are {betas[0]:g}, {betas[1]:g}, but the second is usually larger"
        hint = f"write `betas: {turned}`"
        yield warning("O014", span, message, hint, fixes=() if path is None else (Fix(span, turned, safe=False),))
