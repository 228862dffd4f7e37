"""Cross entropy of what is log-probabilities already."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.class_weights import (
    ClassDim,
    ClassWeights,
    balanced_weights,
    needs_class_weights,
    tally_classes,
)
from declarative_train.components.losses.fit import class_axis, classes, needs_mask_shape
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np


class Nll(Loss):
    """Negative log likelihood of the right class; the input is log-probabilities (`log_softmax(logits)`)."""

    about: ClassVar[str] = "classes"

    type: Literal["nll"] = "nll"
    class_dim: ClassDim = -1
    """The dimension of the input that holds the classes (0 is the batch): -1, the last; images have 1."""
    ignore_index: int | None = None
    """Items with this target do not count: the id of the padding, or -100."""
    class_weights: ClassWeights = None
    """What each class counts: a number for each, or `balanced`: items / (classes x items of the class), among the
    training rows."""

    @property
    def needs_balance(self) -> bool:
        return self.class_weights == "balanced"

    def tally(self, targets: np.ndarray, input: TensorSpec) -> np.ndarray:
        """Items of each class (C,)."""
        return tally_classes(targets, input, self.class_dim, self.ignore_index)

    def balanced(self, tally: np.ndarray) -> Nll:
        return self.model_copy(update={"class_weights": balanced_weights(tally)})

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        misfit = classes(self.type, input, target, self.class_dim, soft=False, ignore_index=self.ignore_index)
        if misfit is not None and not misfit.is_warning:
            return misfit
        axis = class_axis(input.shape, self.class_dim)
        assert axis is not None
        items = input.shape[:axis] + input.shape[axis + 1 :]
        weights = needs_class_weights(self.type, self.class_weights, input.shape[axis], target)
        return weights or needs_mask_shape(self.type, mask, items) or misfit

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules import functions
        from declarative_train.components.losses.modules.classes import OverClasses

        if self.class_weights == "balanced":
            raise TypeError("`class_weights: balanced` was not replaced by numbers")
        axis = class_axis(input.shape, self.class_dim)
        assert axis is not None
        return OverClasses(
            functions.nll,
            input.shape,
            axis,
            soft=False,
            ignore_index=self.ignore_index,
            class_weights=self.class_weights,
            masked=mask is not None,
        )
