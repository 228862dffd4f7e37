"""Check of the first three steps of a session. It finds gradients that are zero, parameters that do not change, and a
loss that does not change.

A run with such a problem ends without an error but learns little or nothing. The check reads values from the device
only after the third step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from declarative_train.core.amounts import list_quoted
from declarative_train.run.loss_window import compute_terms

if TYPE_CHECKING:
    from declarative_train.engine.engine import Engine, StepResult
    from declarative_train.plan.plan import Plan

NUM_STEPS = 3


class FirstSteps:
    """Check of the first three steps of a session: `report` returns messages on parameters without a gradient, on
    parameters that do not change, and on a loss that does not change. All ranks must call `add` and `report` after
    every step. At the end of the session they must call `final`, while the gradients of the last step still exist."""

    def __init__(self, plan: Plan, engine: Engine, first_step: int) -> None:
        self._engine = engine
        self._last = first_step + NUM_STEPS - 1
        self._names = [each.name for each in plan.parameters if not each.frozen and each.tie is None]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._results: list[StepResult] = []
        self._sizes = torch.zeros(len(self._names), device=engine.device)  # norms of the gradients, summed over steps
        self._sampled: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._zero: list[str] = []

    def add(self, step: int, result: StepResult) -> None:
        if step > self._last:
            return
        self._results.append(result)
        self._sizes += self._measure()
        if step == self._last - 1 and self._engine.loss_scale is None:  # fp16 skips steps in the search for its scale
            self._sampled = [
                (name, place, parameter.reshape(-1)[place].clone())
                for name, parameter, gradient in self._local()
                if gradient.numel() and (place := gradient.abs().argmax()) is not None
            ]

    def report(self, step: int) -> list[str]:
        """Return messages on problems in the first three steps of the session. All ranks return the same messages.
        Return [] if `step` is not the third step."""
        if step != self._last:
            return []
        engine = self._engine
        terms = compute_terms(engine, self._results)
        sampled = {name: (place, before) for name, place, before in self._sampled}
        changed = [
            (parameter.reshape(-1)[sampled[name][0]] != sampled[name][1])
            for name, parameter, gradient in self._local()
            if name in sampled and int(gradient.count_nonzero()) * 2 > gradient.numel()
        ]
        counts = torch.tensor([len(changed), sum(map(bool, changed))], device=engine.device)
        sizes, (num_sampled, num_changed) = engine.ranks.sum(self._sizes).tolist(), engine.ranks.sum(counts).tolist()
        self._zero = [name for name, size in zip(self._names, sizes, strict=True) if size == 0]
        self._results, self._sampled = [], []
        found = []
        if self._zero:
            found.append(f"no gradient reached {list_quoted(self._zero)} in the first {NUM_STEPS} steps: a function "
                         "between them and the loss is flat, or the result of their layer is not used")  # fmt: skip
        elif num_sampled and not num_changed:
            found.append(f"no parameter has changed in step {step}: updates are smaller than rounding (look at the lr, "
                         "clip_grad_norm and the scale of the loss)")  # fmt: skip
        if None not in terms[0] and all(each == terms[0] for each in terms):
            found.append(f"the loss has not changed in the first {NUM_STEPS} steps")
        return found

    def final(self) -> list[str]:
        """Return a message on the parameters that had no gradient in the first steps and have none in the last step.
        Return [] if there are none."""
        if not self._zero:
            return []
        sizes = self._engine.ranks.sum(self._measure()).tolist()
        left = [name for name in self._zero if sizes[self._places[name]] == 0]
        return [f"at the end, too, no gradient reached {list_quoted(left)}: they were never trained"] if left else []

    def _local(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """Return (name, parameter, gradient) of each parameter that has a gradient. If a tensor is sharded, only this
        rank's shard of it is returned."""
        return [
            (name, _own_part(parameter.detach()), _own_part(parameter.grad))
            for name, parameter in self._engine.optimizer.parameters.items()
            if parameter.grad is not None
        ]

    def _measure(self) -> torch.Tensor:
        """Return the norm of the gradient of each trained parameter, in the order of `_names`; 0 for a parameter
        without a gradient. If a gradient is sharded, the norm is that of this rank's shard."""
        found = torch.zeros_like(self._sizes)
        held = [(self._places[name], gradient) for name, _, gradient in self._local() if name in self._places]
        if held:
            norms = torch._foreach_norm([gradient for _, gradient in held])
            found[[place for place, _ in held]] = torch.stack([norm.to(found.dtype) for norm in norms])
        return found


def _own_part(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
