"""uneven-batch (R003)

Finds: a global batch that does not divide over the ranks, accumulation steps and microbatches.
Why:   nothing is floored: the batch that is trained is the one that the recipe names.
Bad:
    training:
      global_batch_size: 100
      gradient_accumulation_steps: 3
Good:
    training:
      global_batch_size: 120
      gradient_accumulation_steps: 3
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.batch import data_parallel_size, num_microbatches
from declarative_train.recipe.draft import Draft
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
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
    yield error("R003", draft.span("training.global_batch_size"), f"{size} does not divide over {over}{total}", hint)


def _multiples(size: int, unit: int) -> list[int]:
    below = size // unit * unit
    return [value for value in (below, below + unit) if value]


def _divisors_near(number: int, wanted: int) -> list[int]:
    """The divisors of `number` next below and above `wanted`."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    divisors = sorted({*small, *(number // divisor for divisor in small)})
    below = [divisor for divisor in divisors if divisor < wanted][-1:]
    above = [divisor for divisor in divisors if divisor > wanted][:1]
    return below + above


def _either(values: list[int]) -> str:
    return " or ".join(str(value) for value in values)
