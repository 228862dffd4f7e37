"""The logistic function and its kin: sigmoid, log_sigmoid, hardsigmoid, hardswish."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from declarative_train.components.component import Layer, Misfit
from declarative_train.components.layers.fit import Inputs, needs_float

if TYPE_CHECKING:
    from torch import nn


class Sigmoid(Layer):
    """1 / (1 + exp(-x))."""

    type: Literal["sigmoid"] = "sigmoid"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Sigmoid()


class LogSigmoid(Layer):
    """log(sigmoid(x)), computed safely."""

    type: Literal["log_sigmoid"] = "log_sigmoid"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.LogSigmoid()


class Hardsigmoid(Layer):
    """min(max(x + 3, 0), 6) / 6."""

    type: Literal["hardsigmoid"] = "hardsigmoid"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Hardsigmoid()


class Hardswish(Layer):
    """x * min(max(x + 3, 0), 6) / 6."""

    type: Literal["hardswish"] = "hardswish"

    def check(self, inputs: Inputs) -> Misfit | None:
        return needs_float(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from torch import nn

        return nn.Hardswish()
