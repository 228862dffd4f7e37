"""Observation of memory during a step of the engine: live bytes are counted, and each storage gets a class (parameters,
activations, ...)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.planner.footprint.live_bytes import (
    ACTIVATIONS,
    GRADIENTS,
    LOSS,
    OPTIMIZER,
    PARAMETERS,
    LiveBytes,
    count_resizes,
)

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.engine.engine import Engine
    from declarative_train.engine.observer import StepPart


def step(engine: Engine, live: LiveBytes, number: int, batches: Sequence[Batch], **more: Any) -> Any:
    """Run `engine.step(number, batches, **more)` and return its result, while `live` counts the bytes of all tensors,
    also of those that exist before the step."""
    observer = MemoryObserver(engine, live)
    observer.claim_state()
    for batch in batches:
        for tensor in batch.tensors.values():
            live.take_batch(tensor)
    with count_resizes(live), live:
        return engine.step(number, batches, observer=observer, **more)


class MemoryObserver:
    """Observer of a training step. It tells the counter `live` the memory class of new storages, which depends on the
    part of the step that creates them. For example, everything that the loss creates, in its forward and in its
    backward, has the class LOSS.

    It also tells `live` in which pass (a forward, a backward, ...) operations outside of autograd are, such as the
    casts of all parameters.
    """

    def __init__(self, engine: Engine, live: LiveBytes) -> None:
        self._engine, self._live = engine, live

    def enter(self, part: StepPart, tensors: Iterable[torch.Tensor] = ()) -> None:
        live = self._live
        match part:
            case "casts" | "forward":
                live.between = (part, 0)
            case "stage":
                live.between = ("forward", live.between[1] + 1)
            case "loss":
                self._set_in_backward(ACTIVATIONS, (each for each in tensors if each.grad_fn is not None))
                live.phase = LOSS
            case "backward":
                live.phase = ACTIVATIONS
                self._set_in_backward(LOSS, tensors)
            case "update":
                self._claim_gradients()
                live.phase = OPTIMIZER
            case "end":
                live.phase = ACTIVATIONS
                self._claim_optimizer()

    def claim_state(self) -> None:
        """Set the memory class of each tensor that exists before a step: PARAMETERS, OPTIMIZER or GRADIENTS."""
        engine, live = self._engine, self._live
        for module in engine.modules:
            for tensor in (*module.parameters(), *module.buffers()):
                live.claim(tensor.detach(), PARAMETERS)
        self._claim_optimizer()
        for tensor in engine.average.tensors.values() if engine.average is not None else ():
            live.claim(tensor, OPTIMIZER)
        self._claim_gradients()
        for buffer in engine.receiving:
            live.add(buffer)

    def _claim_optimizer(self) -> None:
        for _, _, value in self._engine.optimizer.state():
            if isinstance(value, torch.Tensor):
                self._live.claim(value, OPTIMIZER)

    def _claim_gradients(self) -> None:
        for gradient in self._engine.optimizer.gradients():
            self._live.claim(gradient, GRADIENTS)

    def _set_in_backward(self, phase: int, tensors: Iterable[torch.Tensor]) -> None:
        """Count new storages to the class `phase` as soon as the backward has computed the gradient of one of
        `tensors`."""

        def set_phase(_: torch.Tensor) -> None:
            self._live.phase = phase

        for tensor in tensors:
            if tensor.requires_grad:
                tensor.register_hook(set_phase)  # type: ignore[no-untyped-call]
