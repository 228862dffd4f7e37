"""Layers for sequences (B, ..., T, D): positions, a class token, pooling over time. Also `layer_scale`,
whose input need not be a sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from declarative_train.components.component import Init, Layer, Port, ShapeError
from declarative_train.components.inits import INITS
from declarative_train.components.layers.default_inits import start
from declarative_train.components.layers.shape_checks import (
    FieldsLayer,
    Inputs,
    dtype_of,
    needs_dimensions,
    needs_float,
    needs_parameter_dtype,
    needs_positions,
)
from declarative_train.core.amounts import format_count
from declarative_train.core.cuts import CutKind, LayerCut
from declarative_train.core.tensor_spec import TensorSpec, interval_in_words

if TYPE_CHECKING:
    from torch import nn


class LearnedPositions(Layer):
    """Adds a learned vector for each position: (B, ..., T, D) to (B, ..., T, D).

    Positions are 0 to T - 1, or `positions` (B, ..., T), whole numbers. Parameter `weight` (max_length, D), which
    starts normal with standard deviation 0.02.
    """

    ports: ClassVar[tuple[Port, ...]] = (Port("x"), Port("positions", optional=True))

    type: Literal["learned_positions"] = "learned_positions"
    max_length: int | None = Field(default=None, ge=1)
    """Number of positions to learn; by default the length of the input. A larger number allows longer sequences later.
    """

    def check(self, inputs: Inputs) -> ShapeError | None:
        shape_error = needs_dimensions(self, inputs, "(B, ..., T, D)", 2) or needs_parameter_dtype(self, inputs, "x")
        if shape_error := shape_error or needs_positions(self, inputs):
            return shape_error
        asked = inputs["positions"].num_values or 0 if "positions" in inputs else 0
        if self._length(inputs) < asked:
            message = (
                f"`positions` go up to {asked - 1}, and {format_count(self._length(inputs), 'position')} can be learnt"
            )
            return ShapeError(message, field="max_length", help=f"set `max_length` to {asked}, or remove it")
        if self.max_length is not None and self.max_length < inputs["x"].shape[-2]:
            message = f"`max_length: {self.max_length}` is shorter than the input: `x` is {inputs['x']}"
            return ShapeError(message, field="max_length", help="remove it to follow the input")
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import LearnedPositionsModule

        return LearnedPositionsModule(self._length(inputs), inputs["x"].shape[-1], dtype_of(inputs["x"]))

    def _length(self, inputs: Inputs) -> int:
        positions = inputs.get("positions")
        asked = 0 if positions is None else positions.num_values or 0
        return self.max_length or max(inputs["x"].shape[-2], asked)

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind == "positions" and len(inputs["x"].shape) == 2 else None

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return start("normal", std=0.02) if parameter == "weight" else super().init_of(parameter, inputs)


class TokenTypes(Layer):
    """Adds a learned vector for the type of each token, such as first or second text of a pair: (B, ..., T, D) to (B,
    ..., T, D).

    `types` (B, ..., T), whole numbers; without this input all tokens have type 0. Parameter `weight` (num_types, D),
    which starts normal with standard deviation 0.02.
    """

    ports: ClassVar[tuple[Port, ...]] = (Port("x"), Port("types", optional=True))

    type: Literal["token_types"] = "token_types"
    num_types: int = Field(ge=1)
    """Number of types to learn."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        shape_error = needs_dimensions(self, inputs, "(B, ..., T, D)", 2) or needs_parameter_dtype(self, inputs, "x")
        if shape_error := shape_error or needs_positions(self, inputs, "types"):
            return shape_error
        low, high = inputs["types"].interval or (0, 0) if "types" in inputs else (0, 0)
        if low < 0 or high >= self.num_types:
            message = (
                f"`types` holds numbers from {interval_in_words((low, high))}, and `num_types` is {self.num_types}"
            )
            hint = f"set `num_types` to {int(high) + 1}" if low >= 0 else "the smallest type is 0"
            return ShapeError(message, field="num_types", help=hint)
        return None

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import TokenTypesModule

        return TokenTypesModule(self.num_types, inputs["x"].shape[-1], dtype_of(inputs["x"]))

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind == "positions" and len(inputs["x"].shape) == 2 else None

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return start("normal", std=0.02) if parameter == "weight" else super().init_of(parameter, inputs)


class SinusoidalPositions(FieldsLayer):
    """Adds sines and cosines of the position, each pair with a lower frequency: (B, ..., T, D) to (B, ..., T, D).

    Positions are 0 to T - 1, or `positions` (B, ..., T), whole numbers. The first half of D holds sines, the second
    cosines. Vaswani et al., Attention is all you need, 2017.
    """

    ports: ClassVar[tuple[Port, ...]] = (Port("x"), Port("positions", optional=True))

    module: ClassVar[str] = "sequences.SinusoidalPositionsModule"
    type: Literal["sinusoidal_positions"] = "sinusoidal_positions"
    base: float = Field(default=10000.0, gt=1, allow_inf_nan=False)
    """Ratio of the highest to the lowest frequency."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        shape_error = needs_dimensions(self, inputs, "(B, ..., T, D)", 2) or needs_float(self, inputs, "x")
        if shape_error := shape_error or needs_positions(self, inputs):
            return shape_error
        if inputs["x"].shape[-1] % 2:
            return ShapeError(f"sines and cosines come in pairs, the width of `x` {inputs['x']} is odd", port="x")
        return None

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind == "positions" and len(inputs["x"].shape) == 2 else None


class ClassToken(Layer):
    """Puts a learned token before the first token of a sequence: (B, ..., T, D) to (B, ..., T + 1, D).

    Parameter `token` (D,), which starts normal with standard deviation 0.02.
    """

    type: Literal["class_token"] = "class_token"

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_dimensions(self, inputs, "(B, ..., T, D)", 2) or needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import ClassTokenModule

        return ClassTokenModule(inputs["x"].shape[-1], dtype_of(inputs["x"]))

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return start("normal", std=0.02) if parameter == "token" else super().init_of(parameter, inputs)


class LayerScale(Layer):
    """A learned factor per element of the last dimension: (B, ..., D) to (B, ..., D). Put it before a residual sum.

    Parameter `weight` (D,). Touvron et al., Going deeper with image transformers, 2021.
    """

    type: Literal["layer_scale"] = "layer_scale"
    start: float = Field(default=1e-4, allow_inf_nan=False)
    """Start value of every factor."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        return needs_dimensions(self, inputs, "(B, ..., D)", 1) or needs_parameter_dtype(self, inputs)

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import LayerScaleModule

        return LayerScaleModule(inputs["x"].shape[-1], dtype_of(inputs["x"]))

    def cut(self, kind: CutKind, inputs: Inputs, size: int) -> LayerCut | str | None:
        return LayerCut(kind, {}) if kind == "positions" and len(inputs["x"].shape) == 2 else None

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        return start("constant", value=self.start) if parameter == "weight" else super().init_of(parameter, inputs)


class SequencePool(FieldsLayer):
    """Pools a sequence to one vector: (B, ..., T, D) to (B, ..., D).

    `mask` (B, ..., T) is true at the positions that count; a sequence without such positions gives 0.
    """

    ports: ClassVar[tuple[Port, ...]] = (Port("x"), Port("mask", optional=True))
    module: ClassVar[str] = "sequences.SequencePoolModule"
    type: Literal["sequence_pool"] = "sequence_pool"
    mode: Literal["mean", "max", "first", "last"] = "mean"
    """How the positions are reduced: their mean, the largest value of each element, or the first or last position."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        if shape_error := needs_dimensions(self, inputs, "(B, ..., T, D)", 2) or needs_float(self, inputs, "x"):
            return shape_error
        mask = inputs.get("mask")
        if mask is not None and (mask.dtype != "bool" or mask.shape != inputs["x"].shape[:-1]):
            wanted = TensorSpec(inputs["x"].shape[:-1], "bool")
            message = f"`mask` of `sequence_pool` must be bool {wanted}, it is {mask.dtype} {mask}"
            hint = None if mask.dtype == "bool" else "compare first, as in `keep: tokens != 0`"
            return ShapeError(message, port="mask", help=hint)
        return None


def _read(value: Any) -> Any:
    """Return the init that `value`, a dict in a plan, describes. A value that is not a dict is returned unchanged."""
    return INITS.read(value) if isinstance(value, dict) else value


class ParameterLayer(Layer):
    """A learned tensor, the same for every sample: (B, *shape). Use it for queries, temperatures, mask tokens or
    codebooks.

    The layer reads only the number of samples of its input, not the values. Parameter `weight` (*shape).
    """

    counts_only: ClassVar[bool] = True

    type: Literal["parameter"] = "parameter"
    shape: tuple[Annotated[int, Field(ge=1)], ...]
    """The shape of the tensor without the batch, such as [12, 32]; [1] for a single number."""
    init: Annotated[SerializeAsAny[Init], BeforeValidator(_read)] | None = None
    """The init of the tensor; by default {type: normal, std: 0.02}."""

    def check(self, inputs: Inputs) -> ShapeError | None:
        shape_error = None if self.init is None else self.init.check(self.shape)
        return None if shape_error is None else shape_error._replace(field="init")

    def build(self, inputs: Inputs) -> nn.Module:
        from declarative_train.components.layers.modules.sequences import LearnedTensor

        return LearnedTensor(self.shape)

    def init_of(self, parameter: str, inputs: Inputs) -> Init:
        if parameter == "weight":
            return self.init or start("normal", std=0.02)
        return super().init_of(parameter, inputs)
