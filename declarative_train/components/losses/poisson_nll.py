"""Counts."""

from __future__ import annotations

from math import inf
from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise, needs_values
from declarative_train.terms.tensor_spec import TensorSpec


class PoissonNll(Loss):
    """Negative log likelihood of counts that are Poisson distributed; the input is the logarithm of the rate."""

    about: ClassVar[str] = "numbers"

    type: Literal["poisson_nll"] = "poisson_nll"
    log_input: bool = True
    """The input is the logarithm of the rate; false: the rate itself."""
    full: bool = False
    """Add Stirling's approximation of the logarithm of the target's factorial, which does not depend on the input."""
    eps: float = Field(1e-8, gt=0)
    """Added to a rate before its logarithm (`log_input: false`)."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        if (misfit := elementwise(self.type, input, target, mask)) is not None or target is None:
            return misfit
        return needs_values(self.type, target, 0, inf, "a count, from 0 on", "use `mse` or `l1` for other numbers")

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules import functions
        from declarative_train.components.losses.modules.elementwise import Elementwise

        function = functions.PoissonNll(self.log_input, self.full, self.eps)
        return Elementwise(function, input.shape, mask is not None)
