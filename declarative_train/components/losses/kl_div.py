"""How far one distribution is from another."""

from __future__ import annotations

from math import inf
from typing import Literal

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import (
    needs_float,
    needs_mask_shape,
    needs_same_shape,
    needs_target,
    needs_values,
)
from declarative_train.terms.tensor_spec import TensorSpec


class KlDiv(Loss):
    """Kullback-Leibler divergence of the target from the input, which is log-probabilities (`log_softmax(logits)`).

    The sum over all elements, divided by the number of rows: torch's `batchmean`. A mask has one value per row.
    """

    type: Literal["kl_div"] = "kl_div"
    log_target: bool = False
    """The target is log-probabilities too."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        if (misfit := needs_target(self.type, target)) is not None or target is None:
            return misfit
        if not input.shape:
            return Misfit(
                f"`kl_div` compares distributions, but the input is {input}: one number per sample", port="input"
            )
        return (
            needs_float(self.type, "input", input)
            or needs_float(self.type, "target", target)
            or needs_same_shape(self.type, input, target)
            or needs_mask_shape(self.type, mask, ())
            or self._needs_probabilities(target)
        )

    def _needs_probabilities(self, target: TensorSpec) -> Misfit | None:
        if self.log_target:
            return needs_values(self.type, target, -inf, 1e-4, "log-probabilities", "`log_target: false` takes others")
        return needs_values(self.type, target, 0, 1.0001, "probabilities", "`softmax` makes some")

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Divergence

        return Divergence(self.log_target, mask is not None)
