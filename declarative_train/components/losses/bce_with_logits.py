"""Yes or no, once or many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, Misfit
from declarative_train.components.losses.fit import elementwise, needs_values
from declarative_train.terms.amounts import counted
from declarative_train.terms.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class BceWithLogits(Loss):
    """Binary cross entropy of logits (scores before the sigmoid), over the elements of input and target.

    A target is 0 or 1, or anything between.
    """

    about: ClassVar[str] = "classes"

    type: Literal["bce_with_logits"] = "bce_with_logits"
    pos_weight: Positive | tuple[Positive, ...] | Literal["balanced"] | None = None
    """How much more a positive counts than a negative: a number, one for each of the last dimension, or `balanced`:
    negatives / positives among the training rows (for targets (B, K), of each of the K)."""

    @property
    def needs_balance(self) -> bool:
        return self.pos_weight == "balanced"

    def tally(self, targets: np.ndarray, input: TensorSpec) -> np.ndarray:
        """Negatives and positives: (2, K) for rows (N, K), else (2, 1). A target between 0 and 1 is what it is nearer
        to."""
        import numpy as np

        rows = targets if targets.ndim == 2 else targets.reshape(-1, 1)
        positive = (rows >= 0.5).sum(axis=0, dtype=np.int64)
        return np.stack([len(rows) - positive, positive])

    def balanced(self, tally: np.ndarray) -> BceWithLogits:
        negatives, positives = tally
        if not (negatives.all() and positives.all()):
            missing = "positive" if not positives.all() else "negative"
            column = "" if tally.shape[1] == 1 else f" in column {int((positives * negatives).argmin())}"
            raise ValueError(f"`pos_weight: balanced` cannot be computed: no training row is {missing}{column}")
        weights = tuple(float(weight) for weight in negatives / positives)
        return self.model_copy(update={"pos_weight": weights[0] if len(weights) == 1 else weights})

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> Misfit | None:
        if (misfit := elementwise(self.type, input, target, mask)) is not None or target is None:
            return misfit
        several = "use `cross_entropy`, with a score for each class"
        if misfit := needs_values(self.type, target, 0, 1, "yes or no", several):
            return misfit
        last = input.shape[-1] if input.shape else 1
        if isinstance(self.pos_weight, tuple) and len(self.pos_weight) != last:
            return Misfit(
                f"`pos_weight` has {counted(len(self.pos_weight), 'number')}, but an input of shape {input} takes "
                f"{last}",
                field="pos_weight",
                help="give one for each, or one number for all",
            )
        return None

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Elementwise
        from declarative_train.components.losses.modules.functions import BinaryCrossEntropy

        if self.pos_weight == "balanced":
            raise TypeError("`pos_weight: balanced` was not replaced by numbers")
        return Elementwise(BinaryCrossEntropy(self.pos_weight), input.shape, mask is not None)
