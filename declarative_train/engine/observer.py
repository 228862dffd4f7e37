"""Observer of a step. Through it, other code can follow what the engine does, for example to count memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

StepPart = Literal["casts", "forward", "chunk", "stage", "stage_end", "loss", "backward", "update", "end"]
"""Parts of a step, by where they begin.

casts      parameters are cast to the compute dtype, once a step
forward    the driver runs the chunks
chunk      the forward of one chunk
stage      the forward of one microbatch in one stage of a pipeline
stage_end  that forward is over
loss       the terms of one chunk
backward   from the terms of one chunk
update     the parameters, from the reduced gradients
end        the parameters are updated
"""


class StepObserver(Protocol):
    """Interface of an observer of a step. The engine calls `enter` when a part of the step begins. An observer must not
    change anything, except that `dtrain verify` changes gradients at the part "update"."""

    def enter(self, part: StepPart, tensors: Iterable[torch.Tensor] = ()) -> None:
        """Record that a part of a step begins. `tensors`: for "loss", the values that the loss terms read; for
        "backward", the sums of the loss terms; otherwise empty."""


class Unobserved:
    """Observer that does nothing."""

    def enter(self, part: StepPart, tensors: Iterable[torch.Tensor] = ()) -> None:
        pass


UNOBSERVED = Unobserved()
