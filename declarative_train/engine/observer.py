"""Observer of a step: the interface through which others follow what the engine does, such as a count of memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

StepPart = Literal["casts", "forward", "stage", "loss", "backward", "update", "end"]
"""Parts of a step, by where they begin.

casts     parameters are cast to the compute dtype, once a step
forward   the driver runs the chunks
stage     the forward of one microbatch in one stage of a pipeline
loss      the terms of one chunk
backward  from the terms of one chunk
update    the parameters, from the reduced gradients
end       the parameters are updated
"""


class StepObserver(Protocol):
    """Follower of a step. The engine calls it on the thread of the step; it changes nothing."""

    def enter(self, part: StepPart, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Note that a part begins. `tensors`: of "loss" the values that the terms read, of "backward" their sums."""


class Unobserved:
    """Observer of a step that none follows."""

    def enter(self, part: StepPart, tensors: Iterable[torch.Tensor] = ()) -> None:
        pass


UNOBSERVED = Unobserved()
