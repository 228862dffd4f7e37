"""Loss of a plugin: the user's code returns values, which dtrain sums over the global batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from declarative_train.components.component import Loss, LossModule, ShapeError
from declarative_train.components.losses.shape_checks import (
    needs_float,
    needs_mask_shape,
    needs_no_target,
    needs_target,
)
from declarative_train.components.plugin_components import PluginComponent, describe_failure
from declarative_train.core.tensor_spec import TensorSpec


class PluginLoss(PluginComponent, Loss):
    """Loss of a plugin. The user's method `forward(self, input, target)` or `forward(self, input)` returns one value
    per sample or per element. Before a run, dtrain calls the method on generated samples. It finds out how many values
    the method returns, and whether the values of a sample depend on other samples.
    """

    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    mixes: ClassVar[bool] = False
    renamed: ClassVar[Mapping[str, str]] = {"mixes_samples": "mixes"}  # built-in losses of this kind have a key `over`

    @classmethod
    def settle(cls) -> None:
        cls.needs_target = cls.num_arguments == 2

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        of_target = needs_target(self.type, target) if self.needs_target else needs_no_target(self.type, target)
        if (shape_error := of_target or needs_float(self.type, "input", input)) is not None:
            return shape_error
        try:
            items = items_of(self, input, target)
        except Exception as problem:  # report any exception of the user's code
            return describe_failure(self.type, problem)
        known = {(): "(B,)", input.shape: str(input)} | ({} if target is None else {target.shape: str(target)})
        if items not in known:
            found = str(TensorSpec(items))
            message = f"`{self.type}` gives {found}; expected one value per sample, or one per element"
            return ShapeError(message, help=f"return {' or '.join(dict.fromkeys(known.values()))} from `forward`")
        return needs_mask_shape(self.type, mask, items)

    def mixing(self, input: TensorSpec, target: TensorSpec | None) -> bool:
        """Return whether the loss values of a sample depend on the other samples of its batch. It is True if the user's
        class declares it. Otherwise `forward` is called with two batch sizes, and the values are compared.
        """
        from declarative_train.components.losses.modules.plugin import depends_on_others

        return self.mixes or depends_on_others(self.make().forward, input, target)

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.plugin import OfPlugin

        return OfPlugin(self.make().forward, items_of(self, input, target), mask is not None)


def items_of(loss: PluginLoss, input: TensorSpec, target: TensorSpec | None) -> tuple[int, ...]:
    """Call `forward` of a plugin's loss on generated samples, and return the shape of its values for one sample.
    `input`, `target`: specs of the samples. Raises any exception of the user's code, and ValueError if the code does
    not return a tensor with one row per sample."""
    from declarative_train.components.losses.modules.plugin import try_forward

    return tuple(try_forward(loss.make().forward, input, target).shape[1:])
