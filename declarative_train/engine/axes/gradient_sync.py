"""Interface for combining the gradients of several ranks."""

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
    """Functions with which an axis combines the gradients of its ranks. The defaults are for a single process.

    `call`           runs the model on a chunk in training
    `begin`          called before each chunk, with (number of rows without padding or None, whether it is the last)
    `end`            called after the backward of each chunk
    `reduce`         called after the last backward: turns this rank's gradients into those of the whole batch
    `norm`           returns the norm of the given gradients, including their shards on other ranks
    `finish`         called after the update, with a bool tensor, false if the update was skipped, or with None if
                     updates are never skipped
    `is_replicated`  every rank has the whole model and the whole optimizer state
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
    """Return the norm of all gradients of a model whose layers are divided over the ranks `group`, bitwise equal on all
    of them. `norm`: function that returns the norm of a list of gradients. `parts`: this rank's gradients of divided
    parameters. `whole`: gradients of undivided parameters; they are equal on all ranks, and count once."""
    total = torch.stack([norm(each).double().square() for each in (parts, whole) if each])
    if whole:
        total[-1] /= group.size
    group.sum_(total)
    return total.sum().sqrt().to((*parts, *whole)[0].dtype)
