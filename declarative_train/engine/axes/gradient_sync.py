"""How those who take different rows of a global batch make one optimizer step of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from declarative_train.engine.step.update import local_norm

if TYPE_CHECKING:
    import torch

    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.step_runner import Call, Sums


def nothing(*_: object) -> None:
    """Nothing to do."""


def as_they_are(optimizers: Optimizers, sums: Sums) -> tuple[Sums, bool]:
    return sums, False


@dataclass(frozen=True, slots=True)
class Sharing:
    """What is different about a way to share out the rows; the defaults are those of a single process.

    call           runs the model on the rows of a chunk, in training (a pipeline's schedule does that itself)
    finish         after the update, which was made if `finite` is true or None: running statistics move
    begin          before a chunk: its real rows (None: all are), and whether it is the last of the step
    end            after its backward
    reduce         after the last backward, gradients become those of the whole batch; the chunks' sums of the loss
                   terms in and out, and whether they are now those of all ranks
    norm           of all gradients together, those of which other ranks hold shards included
    is_replicated  every rank holds the whole model and all that its optimizer remembers
    """

    call: Call
    finish: Callable[[torch.Tensor | None], None]
    begin: Callable[[int | None, bool], None] = nothing
    end: Callable[[], None] = nothing
    reduce: Callable[[Optimizers, Sums], tuple[Sums, bool]] = as_they_are
    norm: Callable[[Sequence[torch.Tensor]], torch.Tensor] = local_norm
    is_replicated: bool = False
