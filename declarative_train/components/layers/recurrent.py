"""Recurrent networks over time: lstm, gru, rnn."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterable
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.layers.default_inits import start
from declarative_train.components.layers.shape_checks import Inputs, dtype_of, needs_dimensions, needs_parameter_dtype
from declarative_train.components.matrix_products import Product, Use

if TYPE_CHECKING:
    from torch import nn


class Recurrent(Layer, ABC):
    """Base class of recurrent layers. Parameters have torch's names, `weight_ih_l0` and so on."""

    outputs: ClassVar[tuple[str, ...]] = ("output", "hidden")

    hidden_size: int = Field(ge=1)
    """Width of the state."""
    num_layers: int = Field(default=1, ge=1)
    """Number of layers on top of each other."""
    bidirectional: bool = False
    """A second network reads the sequence backwards; the outputs of both are concatenated."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Probability that an element is dropped between two layers, in training."""
    bias: bool = True
    """Learned biases."""

    @property
    def is_random(self) -> bool:
        return self.dropout > 0

    def check(self, inputs: Inputs) -> ShapeError | None:
        if shape_error := needs_dimensions(self, inputs, "(B, ..., T, D)", 2) or needs_parameter_dtype(self, inputs):
            return shape_error
        if self.dropout > 0 and self.num_layers == 1:
            hint = "set `num_layers` to 2 or more, or put a `dropout` node behind it"
            return ShapeError("`dropout` acts between layers, and there is one layer", field="dropout", help=hint)
        return None

    def _arguments(self, inputs: Inputs) -> dict[str, Any]:
        return {
            "input_size": inputs["x"].shape[-1],
            "hidden_size": self.hidden_size,
            "num_layers": self.num_layers,
            "bidirectional": self.bidirectional,
            "dropout": self.dropout,
            "bias": self.bias,
            "batch_first": True,
            "dtype": dtype_of(inputs["x"]),
        }

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter.startswith(("weight_", "bias_")):
            bound = 1 / sqrt(self.hidden_size)
            return start("uniform", low=-bound, high=bound)
        return super().init_of(parameter, inputs)

    def products(self, use: Use) -> Iterable[Product]:
        """Yield the matrix products of all gates, each for all time steps together. Products with the state are yielded
        in two parts: the first time step, whose state needs no gradient, and all others."""
        *leading, steps, _ = use.inputs["x"].shape
        for each in use.matrices:
            flops = 2 * prod(each.shape) * prod(leading)
            if each.name.startswith("weight_hh"):
                yield Product(flops, int(each.is_trained))
                yield Product(flops * (steps - 1), use.is_inner_graded + each.is_trained)
            else:
                side = use.graded["x"] if each.name.startswith("weight_ih_l0") else use.is_inner_graded
                yield Product(flops * steps, side + each.is_trained)


class Lstm(Recurrent):
    """Long short-term memory: (B, ..., T, D) to `output` (B, ..., T, H) and the last states `hidden` and `cell`, each
    (B, ..., layers, H).

    With `bidirectional`, `output` is (B, ..., T, 2 * H) and each state (B, ..., 2 * layers, H), forwards before
    backwards. Hochreiter and Schmidhuber, Long short-term memory, 1997.
    """

    outputs: ClassVar[tuple[str, ...]] = ("output", "hidden", "cell")

    type: Literal["lstm"] = "lstm"

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import LstmModule

        return LstmModule(**self._arguments(inputs))


class Gru(Recurrent):
    """Gated recurrent units: (B, ..., T, D) to `output` (B, ..., T, H) and the last state `hidden` (B, ..., layers,
    H).

    With `bidirectional`, `output` is (B, ..., T, 2 * H) and the state (B, ..., 2 * layers, H), forwards before
    backwards. Cho et al., Learning phrase representations using RNN encoder-decoder, 2014.
    """

    type: Literal["gru"] = "gru"

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import GruModule

        return GruModule(**self._arguments(inputs))


class Rnn(Recurrent):
    """The plain recurrent network: (B, ..., T, D) to `output` (B, ..., T, H) and the last state `hidden`
    (B, ..., layers, H)."""

    type: Literal["rnn"] = "rnn"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """The function applied to the new state."""

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import RnnModule

        return RnnModule(nonlinearity=self.nonlinearity, **self._arguments(inputs))
