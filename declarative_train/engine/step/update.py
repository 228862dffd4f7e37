"""Update of the parameters from accumulated gradients: gradient norm, loss scale, clipping, check for nan and infinite
values, optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.engine.collectives import local_part

if TYPE_CHECKING:
    from declarative_train.engine.step.optimizers import Optimizers
    from declarative_train.engine.step.scale import LossScale
    from declarative_train.plan.plan import TrainingPlan


class Update:
    """Update of the parameters at the end of a step. `global_norm`: function that returns the norm of the whole model's
    gradients. The norm is the same on every rank, so all ranks clip equally and skip the same steps, without further
    communication."""

    def __init__(
        self,
        optimizers: Optimizers,
        training: TrainingPlan,
        loss_scale: LossScale | None,
        global_norm: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    ) -> None:
        self._optimizers = optimizers
        self._max_norm = training.clip_grad_norm
        self._loss_scale = loss_scale
        self._guarded = training.non_finite == "skip" or loss_scale is not None
        self._global_norm = global_norm

    def __call__(self, lr_factor: float, measure: bool) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Clip the gradients and update the parameters. Return (norm, finite). `norm`: gradient norm before clipping.
        `finite`: bool tensor that says whether the norm is finite. Each is None if it was not computed. With
        `non_finite: skip` or in fp16, the parameters are not updated if the norm is not finite. `lr_factor`: factor of
        the lr schedule. `measure`: compute the norm even if only the logs need it."""
        optimizers = self._optimizers
        optimizers.set_lr_factor(lr_factor)
        if not (measure or self._guarded or self._max_norm is not None):
            optimizers.step()
            return None, None
        with torch.no_grad():
            gradients = optimizers.gradients()
            norm = self._global_norm(gradients)
            factor = None
            if self._loss_scale is not None:
                factor = self._loss_scale.factor.reciprocal()
                norm = norm * factor
            if self._max_norm is not None:
                clip = torch.clamp(self._max_norm / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_
                factor = clip if factor is None else factor * clip
            if factor is not None and gradients:  # a stage may train nothing
                gradients = [local_part(each) for each in gradients]  # shards may belong to several meshes
                torch._foreach_mul_(gradients, factor)
        if not self._guarded:
            optimizers.step()
            return norm, None
        finite = norm.isfinite()
        optimizers.step_if(finite)
        if self._loss_scale is not None:
            self._loss_scale.update(finite)
        return norm, finite


def compute_norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the 2-norm of all gradients together. For DTensors it includes the shards on all ranks."""
    total: Any = torch.nn.utils.get_total_norm(gradients)
    return total.full_tensor() if hasattr(total, "full_tensor") else total  # type: ignore[no-any-return]
