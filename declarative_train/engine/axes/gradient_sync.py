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
    """Functions with which an axis combines gradients; the defaults are those of a single process.

    call           run the model on a chunk in training (a pipeline's schedule does this itself)
    begin          called before a chunk: number of its real rows (None: all), whether it is the last of the step
    end            called after the backward of a chunk
    reduce         called after the last backward: turn gradients into those of the whole batch
    norm           return the norm of all gradients together, with those of shards on other ranks
    finish         called after the optimizer's update, to update running statistics; `finite` False: no update
    is_replicated  whether every rank has the whole model and the whole optimizer state"""

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
    """Return the norm of all gradients of a model that ranks divide. `norm`: function that returns the norm of the
    gradients it is given. `parts`: gradients of which each rank of `group` has a part. `whole`: gradients that are the
    same on all ranks of `group`. All ranks get bitwise the same number."""
    total = torch.stack([norm(each).double().square() for each in (parts, whole) if each])
    if whole:
        total[-1] /= group.size
    group.sum_(total)
    return total.sum().sqrt().to((*parts, *whole)[0].dtype)
