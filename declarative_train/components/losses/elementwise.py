"""Losses of numbers, element by element: input and target have one shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import torch


class Elementwise(Loss, ABC):
    """What they have in common."""

    about: ClassVar[str] = "numbers"

    @abstractmethod
    def _function(self) -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
        """Of (input, target, reduction)."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        return elementwise(self.type, input, target, mask)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Elementwise as Module

        return Module(self._function(), input.shape, mask is not None)


class L1(Elementwise):
    """Mean absolute error, over the elements of input and target, which have one shape."""

    type: Literal["l1"] = "l1"

    def _function(self) -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
        from declarative_train.components.losses.modules import functions

        return functions.l1


class Mse(Elementwise):
    """Mean squared error, over the elements of input and target, which have one shape."""

    type: Literal["mse"] = "mse"

    def _function(self) -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
        from declarative_train.components.losses.modules import functions

        return functions.mse


class SmoothL1(Elementwise):
    """Squared error / (2 `beta`) up to `beta`, beyond it the absolute error - `beta` / 2."""

    type: Literal["smooth_l1"] = "smooth_l1"
    beta: float = Field(1.0, ge=0)
    """The error at which the square becomes a straight line of slope 1; 0 is `l1`."""

    def _function(self) -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
        from declarative_train.components.losses.modules import functions

        return functions.SmoothL1(self.beta)


class Huber(Elementwise):
    """Half the squared error up to `delta`, beyond it `delta` times (the absolute error - `delta` / 2)."""

    type: Literal["huber"] = "huber"
    delta: float = Field(1.0, gt=0)
    """The error at which the square becomes a straight line."""

    def _function(self) -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
        from declarative_train.components.losses.modules import functions

        return functions.Huber(self.delta)


class PoissonNll(Elementwise):
    """Negative log likelihood of counts that are Poisson distributed; the input is the logarithm of the rate."""

    type: Literal["poisson_nll"] = "poisson_nll"
    log_input: bool = True
    """The input is the logarithm of the rate; false: the rate itself."""
    full: bool = False
    """Add Stirling's approximation of the logarithm of the target's factorial, which does not depend on the input."""
    eps: float = Field(1e-8, gt=0)
    """Added to a rate before its logarithm (`log_input: false`)."""

    def _function(self) -> Callable[[torch.Tensor, torch.Tensor, str], torch.Tensor]:
        from declarative_train.components.losses.modules import functions

        return functions.PoissonNll(self.log_input, self.full, self.eps)
