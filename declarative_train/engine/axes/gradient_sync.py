"""Interface for combining the gradients of ranks that have different rows of a global batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from declarative_train.engine.step.update import compute_norm

if TYPE_CHECKING:
    from declarative_train.engine.collectives import Ranks
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.step_runner import Call


def do_nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True)
class GradientSync:
    """Functions of one way to combine gradients; the defaults are those of a single process.

    call           runs the model on the rows of a chunk, in training (a pipeline's schedule does that itself)
    finish         updates running statistics after the optimizer's update; `finite` False: there was no update
    begin          runs before a chunk: its real rows (None: all), and whether it is the last of the step
    end            runs after the chunk's backward
    reduce         runs after the last backward: makes gradients those of the whole batch
    norm           norm of all gradients together, including shards on other ranks
    is_replicated  every rank holds the whole model and the whole optimizer state
    """

    call: Call
    finish: Callable[[torch.Tensor | None], None]
    begin: Callable[[int | None, bool], None] = do_nothing
    end: Callable[[], None] = do_nothing
    reduce: Callable[[Optimizers], None] = do_nothing
    norm: Callable[[Sequence[torch.Tensor]], torch.Tensor] = compute_norm
    is_replicated: bool = False


def norm_of_parts(
    norm: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    parts: Sequence[torch.Tensor],
    whole: Sequence[torch.Tensor],
    group: Ranks,
) -> torch.Tensor:
    """Return the norm of gradients, of which each rank has a part or the whole. The share of the whole ones is
    averaged, so that all ranks clip by the same number to the bit."""
    total = torch.stack([norm(each).double().square() for each in (parts, whole) if each])
    if whole:
        total[-1] /= group.size
    group.sum_(total)
    return total.sum().sqrt().to((*parts, *whole)[0].dtype)
