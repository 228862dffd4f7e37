"""Step of an engine under the count of live bytes, with the class of each storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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


def step(engine: Engine, live: LiveBytes, number: int, batches: Sequence[Batch], **more: Any) -> Any:
    """Run `engine.step` while `live` counts, including everything that exists before it."""
    claim_state(engine, live)
    for batch in batches:
        for tensor in batch.tensors.values():
            live.take_batch(tensor)
    with _phases(engine, live), count_resizes(live), live:
        return engine.step(number, batches, **more)


def claim_state(engine: Engine, live: LiveBytes) -> None:
    """Set the classes of everything that exists before a step."""
    for module in (engine.model, *engine._held.modules):
        for tensor in (*module.parameters(), *module.buffers()):
            live.claim(tensor.detach(), PARAMETERS)
    for _, _, value in engine.optimizer.state():
        if isinstance(value, torch.Tensor):
            live.claim(value, OPTIMIZER)
    for tensor in engine.average.tensors.values() if engine.average is not None else ():
        live.claim(tensor, OPTIMIZER)
    for gradient in engine.optimizer.gradients():
        live.claim(gradient, GRADIENTS)
    for buffer in engine.receiving:
        live.add(buffer)


@contextmanager
def _phases(engine: Engine, live: LiveBytes) -> Iterator[None]:
    """Set the phase during a step. What the loss and its part of the backward create belongs to the loss. The casts of
    all parameters before the forward are a separate pass, and so is each forward of a stage."""
    objective, update, casts = engine.objective, engine._update, engine._in_compute_dtype
    sums = objective.sums

    def count_sums(values: Mapping[str, torch.Tensor], row_weight: torch.Tensor | None) -> Any:
        for value in values.values():
            if value.requires_grad and value.grad_fn is not None:
                value.register_hook(leave_loss)  # type: ignore[no-untyped-call]
        live.phase = LOSS
        found = sums(values, row_weight)
        live.phase = ACTIVATIONS
        for value in found:
            if value.requires_grad:
                value.register_hook(enter_loss)  # type: ignore[no-untyped-call]
        return found

    def enter_loss(_: torch.Tensor) -> None:
        live.phase = LOSS

    def leave_loss(_: torch.Tensor) -> None:
        live.phase = ACTIVATIONS

    def count_update(lr_factor: float, measure: bool) -> Any:
        for gradient in engine.optimizer.gradients():
            live.claim(gradient, GRADIENTS)
        live.phase = OPTIMIZER
        found = update(lr_factor, measure)
        live.phase = ACTIVATIONS
        for _, _, value in engine.optimizer.state():
            if isinstance(value, torch.Tensor):
                live.claim(value, OPTIMIZER)
        return found

    @contextmanager
    def count_casts() -> Iterator[None]:
        live.between = ("casts", 0)
        with casts:
            live.between = ("forward", 0)
            yield

    def enter_forward(*_: object) -> None:
        live.between = ("forward", live.between[1] + 1)

    live.phase = ACTIVATIONS
    engine._in_compute_dtype = count_casts()
    hooks = [stage.register_forward_pre_hook(enter_forward) for stage in engine._held.stages.values()]
    objective.sums = count_sums  # type: ignore[method-assign]
    engine._update = count_update  # type: ignore[assignment]
    try:
        yield
    finally:
        del objective.sums
        engine._in_compute_dtype = casts
        for hook in hooks:
            hook.remove()
        engine._update = update
