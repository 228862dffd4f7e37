"""Two views of each sample, found again among those of the others."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import Loss, LossModule, ShapeError
from declarative_train.components.layers.sample_groups import Over, group_size
from declarative_train.components.losses.shape_checks import needs_float, needs_same_shape, needs_target
from declarative_train.core.tensor_spec import TensorSpec


class InfoNce(Loss):
    """Contrastive loss: among the second views of a group of samples, each first view has to find its own.

    Cross entropy over the similarities input @ target.T / temperature of a group, whose other samples are the
    negatives; input and target are (B, D), two views of the same samples. van den Oord et al., "Representation learning
    with contrastive predictive coding", https://arxiv.org/abs/1807.03748; `symmetric` as in CLIP,
    https://arxiv.org/abs/2103.00020.
    """

    mixes_samples: ClassVar[bool] = True

    type: Literal["info_nce"] = "info_nce"
    temperature: float = Field(0.1, gt=0, allow_inf_nan=False)
    """What similarities are divided by."""
    symmetric: bool = True
    """Also let each second view find its first one, and take the mean of both."""
    normalize: bool = True
    """Bring every view to length 1, so that similarities are cosines."""
    over: Over = "microbatch"
    """`N samples`: the negatives are among N consecutive samples of the global batch (in evaluation: of the set),
    gathered from other GPUs where needed. `microbatch`: whatever one GPU has at a time, so that the loss depends on the
    layout."""

    def check(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> ShapeError | None:
        if (shape_error := needs_target(self.type, target)) is not None or target is None:
            return shape_error
        if mask is not None:
            return ShapeError(
                "`info_nce` takes no mask: each sample is compared with all others of its group", port="mask"
            )
        if len(input.shape) != 1:
            message = f"`info_nce` compares one vector per sample, (B, D), but the input is {input}"
            hint = "a `flatten`, or a mean over the other dimensions, before it gives (B, D)"
            return ShapeError(message, port="input", help=hint)
        if group_size(self.over) == 1:
            message = "a group of 1 sample has no negatives, so that the loss is always 0"
            return ShapeError(message, field="over", help="take as many samples as fit, such as `256 samples`")
        return (
            needs_float(self.type, "input", input)
            or needs_float(self.type, "target", target)
            or needs_same_shape(self.type, input, target)
        )

    def build(self, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None) -> LossModule:
        from declarative_train.components.losses.modules.contrast import Contrast

        return Contrast(self.temperature, self.symmetric, self.normalize, group_size(self.over))
