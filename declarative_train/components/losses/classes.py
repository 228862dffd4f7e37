"""Losses over classes: binary, one of several classes, the divergence of two distributions, and a contrastive loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field

from declarative_train.components.component import Loss, LossModule, ShapeError
from declarative_train.components.layers.sample_groups import Over, group_size
from declarative_train.components.losses.shape_checks import (
    class_axis,
    classes,
    elementwise,
    needs_float,
    needs_mask_shape,
    needs_same_shape,
    needs_target,
    needs_values,
)
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import torch


def _not_the_batch(dim: int) -> int:
    if dim == 0:
        raise ValueError("`class_dim: 0` is the batch; use -1 for the last dimension, or 1 for images")
    return dim


ClassDim = Annotated[int, AfterValidator(_not_the_batch)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ClassWeights = tuple[Weight, ...] | Literal["balanced"] | None


def needs_class_weights(
    type: str, class_weights: ClassWeights, num_classes: int, target: TensorSpec | None
) -> ShapeError | None:
    """Return a ShapeError if `class_weights` does not fit the loss, else None. A list must have `num_classes` numbers.
    "balanced" needs class numbers as targets, not class probabilities.
    """
    if class_weights is None:
        return None
    if class_weights == "balanced":
        if target is None or not target.is_floating:
            return None
        message = (
            "`class_weights: balanced` counts the classes of the training rows, but the target has class probabilities"
        )
        return ShapeError(message, field="class_weights", help="list a number for each class")
    if len(class_weights) == num_classes:
        return None
    message = (
        f"`class_weights` has {format_count(len(class_weights), 'number')} for {format_count(num_classes, 'class')}"
    )
    return ShapeError(message, field="class_weights")


def tally_classes(targets: np.ndarray, input: TensorSpec, class_dim: int, ignore_index: int | None) -> np.ndarray:
    """Return the number of items of each class, (C,) int64. Items of class `ignore_index` are not counted. `targets`:
    class numbers. `input`: spec of the scores, whose dimension `class_dim` has one entry per class. Raises ValueError
    for a class number out of range.
    """
    import numpy as np

    axis = class_axis(input.shape, class_dim)
    assert axis is not None, "the check comes before the count"
    flat = targets.reshape(-1)
    if ignore_index is not None:
        flat = flat[flat != ignore_index]
    num_classes = input.shape[axis]
    if flat.size and (int(flat.min()) < 0 or int(flat.max()) >= num_classes):
        wrong = int(flat.min()) if int(flat.min()) < 0 else int(flat.max())
        raise ValueError(f"a target of the training rows is {wrong}, but there are {num_classes} classes")
    return np.bincount(flat.astype(np.int64), minlength=num_classes).astype(np.int64)


def balance_weights(tally: np.ndarray) -> tuple[float, ...]:
    """Return class weights with which each class that occurs has the same total weight. A class with m of n items has
    the weight n / (k m), where k is the number of classes that occur; the mean over the items is 1. A class without
    items has weight 1. `tally`: number of items of each class. Raises ValueError if there are no items."""
    num_items, num_present = int(tally.sum()), int((tally > 0).sum())
    if num_items == 0:
        raise ValueError(
            "`class_weights: balanced` cannot be computed: no training row has a class that is not ignored"
        )
    return tuple(num_items / (num_present * int(count)) if count else 1.0 for count in tally)


class OfClasses(Loss, ABC):
    """Base class of losses over several classes. `takes_probabilities`: the target may have a probability for each
    class.
    """

    about: ClassVar[str] = "classes"
    one_class: ClassVar[bool] = True
    per_item: ClassVar[bool] = True
    takes_probabilities: ClassVar[bool] = False

    class_dim: ClassDim = -1
    """Dimension of the input that contains the classes (0 is the batch): -1 is the last; use 1 for images."""
    ignore_index: int | None = None
    """Items with this target are not counted; for example the id of the padding, or -100."""
    if TYPE_CHECKING:  # declared in each class, so that it is documented there
        class_weights: ClassWeights

    @abstractmethod
    def _function(self) -> Callable[..., torch.Tensor]:
        """Return the torch function that computes the loss of each item from scores and targets."""

    @property
    def needs_balance(self) -> bool:
        return self.class_weights == "balanced"

    def tally(self, targets: np.ndarray, input: TensorSpec) -> np.ndarray:
        """Return the number of items of each class, (C,). Items of class `ignore_index` are not counted. `targets`:
        class numbers. `input`: spec of the scores.
        """
        return tally_classes(targets, input, self.class_dim, self.ignore_index)

    def balance(self, tally: np.ndarray) -> Self:
        return self.model_copy(update={"class_weights": balance_weights(tally)})

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        if self.takes_probabilities and target is not None and target.is_floating and self.ignore_index is not None:
            return ShapeError(
                f"`ignore_index` is a class number, but the target is {target.dtype}: class probabilities",
                field="ignore_index",
                help="exclude items with a `mask`, or set the target's `dtype: int64`",
            )
        shape_error = classes(
            self.type, input, target, self.class_dim, soft=self.takes_probabilities, ignore_index=self.ignore_index
        )
        if shape_error is not None and not shape_error.is_warning:
            return shape_error
        axis = class_axis(input.shape, self.class_dim)
        assert axis is not None
        items = input.shape[:axis] + input.shape[axis + 1 :]
        weights = needs_class_weights(self.type, self.class_weights, input.shape[axis], target)
        return weights or needs_mask_shape(self.type, mask, items) or shape_error

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.classes import OfItems, OverClasses

        if self.class_weights == "balanced":
            raise TypeError("`class_weights: balanced` was not replaced by numbers")
        assert target is not None
        made, shape, axis = OverClasses, input.shape, class_axis(input.shape, self.class_dim)
        if (
            input.shape == target.shape and not target.is_floating
        ):  # the input is losses that a `ChunkedHead` computed, not scores
            made, shape, axis = OfItems, (*input.shape, 1), len(input.shape)
        assert axis is not None
        return made(
            self._function(),
            shape,
            axis,
            soft=target.is_floating,
            ignore_index=self.ignore_index,
            class_weights=self.class_weights,
            masked=mask is not None,
        )


class CrossEntropy(OfClasses):
    """Cross entropy of logits (scores before the softmax) with the class number, or with a probability for each class.

    The sum over the items is divided by the number of items. With `class_weights`, it is divided by the sum of the
    weights of the items, as in torch.
    """

    takes_probabilities: ClassVar[bool] = True

    type: Literal["cross_entropy"] = "cross_entropy"
    label_smoothing: float = Field(0.0, ge=0, le=1)
    """Share of the target's probability that is spread evenly over all classes."""
    class_weights: ClassWeights = None
    """Weight of each class: a list of numbers, or `balanced`, which is items / (classes x items of the class) in the
    training rows.
    """
    chunks: int | None = Field(default=None, ge=2)
    """Saves memory with a large vocabulary: the loss and the linear layer before it are computed in this number of
    chunks of the positions, so that the scores of all positions are never in memory together. Loss and gradients are
    the same, but the backward computes the linear layer again. No other node may read the scores.
    """

    def _function(self) -> Callable[..., torch.Tensor]:
        from declarative_train.components.losses.modules.elementwise import CrossEntropyFunction

        return CrossEntropyFunction(self.label_smoothing)

    def can_divide_classes(self, input: TensorSpec, target: TensorSpec | None) -> bool:
        is_last = class_axis(input.shape, self.class_dim) == len(input.shape) - 1
        return is_last and target is not None and not target.is_floating


class Nll(OfClasses):
    """Negative log likelihood of the target class. The input has log-probabilities (`log_softmax(logits)`)."""

    type: Literal["nll"] = "nll"
    class_weights: ClassWeights = None
    """Weight of each class: a list of numbers, or `balanced`, which is items / (classes x items of the class) in the
    training rows.
    """

    def _function(self) -> Callable[..., torch.Tensor]:
        from declarative_train.components.losses.modules.elementwise import nll

        return nll


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class BceWithLogits(Loss):
    """Binary cross entropy of logits (scores before the sigmoid): the mean over the elements of input and target.

    A target is between 0 and 1.
    """

    about: ClassVar[str] = "classes"
    target_range: ClassVar[tuple[float, float]] = (0, 1)
    per_item: ClassVar[bool] = True

    type: Literal["bce_with_logits"] = "bce_with_logits"
    pos_weight: Positive | tuple[Positive, ...] | Literal["balanced"] | None = None
    """Weight of positives relative to negatives: one number, a list with one for each entry of the last dimension, or
    `balanced`. The last is negatives / positives in the training rows; for targets (B, K) it is computed for each of
    the K.
    """

    @property
    def needs_balance(self) -> bool:
        return self.pos_weight == "balanced"

    def tally(self, targets: np.ndarray, input: TensorSpec) -> np.ndarray:
        """Return the numbers of negative targets (first row) and of positive targets (second row). They are counted for
        each column if `targets` are (N, K): the result is (2, K). Otherwise it is (2, 1). A target of 0.5 or more is
        positive.
        """
        import numpy as np

        rows = targets if targets.ndim == 2 else targets.reshape(-1, 1)
        positive = (rows >= 0.5).sum(axis=0, dtype=np.int64)
        return np.stack([len(rows) - positive, positive])

    def balance(self, tally: np.ndarray) -> BceWithLogits:
        negatives, positives = tally
        if not (negatives.all() and positives.all()):
            missing = "positive" if not positives.all() else "negative"
            column = "" if tally.shape[1] == 1 else f" in column {int((positives * negatives).argmin())}"
            raise ValueError(f"`pos_weight: balanced` cannot be computed: no training row is {missing}{column}")
        weights = tuple(float(weight) for weight in negatives / positives)
        return self.model_copy(update={"pos_weight": weights[0] if len(weights) == 1 else weights})

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        if (shape_error := elementwise(self.type, input, target, mask)) is not None or target is None:
            return shape_error
        several = "use `cross_entropy`, with a score for each class"
        if shape_error := needs_values(self.type, target, *self.target_range, "a number from 0 to 1", several):
            return shape_error
        last = input.shape[-1] if input.shape else 1
        if isinstance(self.pos_weight, tuple) and len(self.pos_weight) != last:
            return ShapeError(
                f"`pos_weight` has {format_count(len(self.pos_weight), 'number')}, but an input of shape {input} needs "
                f"{last}",
                field="pos_weight",
                help="list one for each, or set one number for all",
            )
        return None

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import BinaryCrossEntropy, ElementwiseModule

        if self.pos_weight == "balanced":
            raise TypeError("`pos_weight: balanced` was not replaced by numbers")
        return ElementwiseModule(BinaryCrossEntropy(self.pos_weight), input.shape, mask is not None)


class KlDiv(Loss):
    """Kullback-Leibler divergence of the target from the input, which has log-probabilities (`log_softmax(logits)`).

    The sum over all elements is divided by the number of rows, as with torch's reduction `batchmean`. A mask has one
    value per row.
    """

    type: Literal["kl_div"] = "kl_div"
    log_target: bool = False
    """The target has log-probabilities too."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        if (shape_error := needs_target(self.type, target)) is not None or target is None:
            return shape_error
        if not input.shape:
            return ShapeError(
                f"`kl_div` compares distributions, but the input is {input}: one number per sample", port="input"
            )
        return (
            needs_float(self.type, "input", input)
            or needs_float(self.type, "target", target)
            or needs_same_shape(self.type, input, target)
            or needs_mask_shape(self.type, mask, ())
            or self._needs_probabilities(target)
        )

    def _needs_probabilities(self, target: TensorSpec) -> ShapeError | None:
        if self.log_target:
            return needs_values(
                self.type, target, -inf, 1e-4, "log-probabilities", "`log_target: false` expects probabilities"
            )
        return needs_values(self.type, target, 0, 1.0001, "probabilities", "a `softmax` gives probabilities")

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.elementwise import Divergence

        return Divergence(self.log_target, mask is not None)


class InfoNce(Loss):
    """Contrastive loss: given the first view of a sample, find its second view among the second views of a group of
    samples.

    `input` and `target` are (B, D), the two views of the same samples. The loss is the cross entropy over the
    similarities input @ target.T / temperature within a group; the other samples of the group are the negatives. van
    den Oord et al., "Representation learning with contrastive predictive coding", https://arxiv.org/abs/1807.03748;
    `symmetric` as in CLIP, https://arxiv.org/abs/2103.00020.
    """

    mixes_samples: ClassVar[bool] = True

    type: Literal["info_nce"] = "info_nce"
    temperature: float = Field(0.1, gt=0, allow_inf_nan=False)
    """Divisor of the similarities."""
    symmetric: bool = True
    """Also match each second view with its first, and take the mean of both."""
    normalize: bool = True
    """Scale every view to length 1, so that similarities are cosines."""
    over: Over = "microbatch"
    """`N samples`: the negatives are N consecutive samples of the global batch, gathered from other GPUs if needed; in
    an evaluation N consecutive samples of the set. `microbatch`: the negatives are the samples of one GPU's
    microbatch, so that the loss depends on the layout.
    """

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        if (shape_error := needs_target(self.type, target)) is not None or target is None:
            return shape_error
        if mask is not None:
            return ShapeError(
                "`info_nce` accepts no mask: each sample is compared with all others of its group", port="mask"
            )
        if len(input.shape) != 1:
            message = f"`info_nce` compares one vector per sample, (B, D), but the input is {input}"
            hint = "add a `flatten`, or a mean over the other dimensions, to get (B, D)"
            return ShapeError(message, port="input", help=hint)
        if group_size(self.over) == 1:
            message = "a group of 1 sample has no negatives, so that the loss is always 0"
            return ShapeError(message, field="over", help="use as many samples as fit in memory, such as `256 samples`")
        return (
            needs_float(self.type, "input", input)
            or needs_float(self.type, "target", target)
            or needs_same_shape(self.type, input, target)
        )

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.contrast import Contrast

        return Contrast(self.temperature, self.symmetric, self.normalize, group_size(self.over))
