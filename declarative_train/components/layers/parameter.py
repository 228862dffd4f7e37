"""A learned tensor as a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from declarative_train.components.component import Init, Layer, ShapeError
from declarative_train.components.inits import INITS
from declarative_train.components.layers.default_inits import start
from declarative_train.components.layers.shape_checks import Inputs

if TYPE_CHECKING:
    from torch import nn


def _read(value: Any) -> Any:
    """Return the init that a plan holds as data."""
    return INITS.read(value) if isinstance(value, dict) else value


class ParameterLayer(Layer):
    """A learned tensor, the same for every sample: (B, *shape), for queries, temperatures, mask tokens, codebooks.

    It uses only the number of samples of its input. Parameter `weight` (*shape).
    """

    counts_only: ClassVar[bool] = True

    type: Literal["parameter"] = "parameter"
    shape: tuple[Annotated[int, Field(ge=1)], ...]
    """Its sizes without the batch, [12, 32]; [1] for a number."""
    init: Annotated[SerializeAsAny[Init], BeforeValidator(_read)] | None = None
    """How it starts; by default {type: normal, std: 0.02}."""

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
