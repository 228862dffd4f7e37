"""Section `training`: how long to train, with which batch sizes and which optimizer."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule, Optimizer
from declarative_train.components.durations import Clock, Progress
from declarative_train.core.duration import Duration
from declarative_train.core.tensor_spec import DType
from declarative_train.recipe.sections.section import Section

Count = Annotated[int, Field(ge=1)]


class LrScheduleSection(Section):
    """Learning-rate schedule: in each step, the learning rate of every parameter group is multiplied by a factor. The
    key `warmup` is a part of it. Keys other than those below belong to its `type`.
    """

    inline: ClassVar[str | None] = "component"

    component: LrSchedule
    warmup: Progress | None = None
    """Duration in which the factor rises to 1, such as `100 steps` or `5%`; left out: no warm-up. The rise is linear:
    step n of N has the factor n / (N + 1), so that the first step already trains and step N + 1 has the factor 1.
    """


def _constant() -> LrScheduleSection:
    from declarative_train.components.lr_schedules.factors import ConstantLr

    return LrScheduleSection(component=ConstantLr())


class EarlyStop(Section):
    """Early stopping: the run ends when a metric no longer improves."""

    metric: str
    """Metric to watch: `<set>/loss`, `<set>/loss/<term>` or `<set>/<metric>`, such as validation/loss."""
    mode: Literal["min", "max"]
    """Whether smaller (`min`) or larger (`max`) values are better."""
    patience: Progress
    """How long the run continues without a better value, such as `3 epochs`."""


class Ema(Section):
    """Moving average of each trained parameter. Each step sets average = d x average + (1 - d) x parameter, with d =
    min(decay, (1 + step) / (10 + step)); steps are counted from 1.
    """

    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9999
    """Share of the old average that remains after a step. The average covers about 1 / (1 - decay) steps, fewer at the
    beginning.
    """


class Precision(Section):
    """Precision of the computation, and of the gradients that ranks exchange (docs/precision.md)."""

    compute: Literal["fp32", "bf16", "fp16", "fp64"] = "fp32"
    """Precision of forward and backward. With bf16 and fp16, parameters and optimizer stay in fp32; fp16 scales the
    loss.
    """
    reduce: Literal["fp32", "bf16"] | None = None
    """Precision in which ranks exchange gradients; left out: that of the parameters. bf16 halves the traffic, and
    rounds the sums.
    """
    matmul: Literal["highest", "tf32"] = "highest"
    """How float32 matrices are multiplied: tf32 rounds their elements to 10 bits, which is several times faster on GPUs
    that support it. Products in bf16 or fp16 are not affected.
    """

    @property
    def of_fields(self) -> DType:
        """Dtype of the floating-point fields that do not set `dtype`."""
        return "float64" if self.compute == "fp64" else "float32"


class ActivationCheckpointing(Section):
    """Recomputation of activations in the backward, instead of keeping them."""

    policy: Literal["none", "selective", "blocks", "all"] = "none"
    """What is recomputed. blocks: each block (a copy of the outermost repeat, else a top-level node); all: every node;
    selective: each block, except for the activations in `keep`.
    """
    every: Count = 1
    """With `blocks` and `selective`: recompute only every n-th block. With 3, these are the first, the fourth and so
    on; the other blocks keep their activations.
    """
    keep: Annotated[tuple[Literal["attention", "products", "every_second_product"], ...], Field(min_length=1)] = (
        "attention",
        "every_second_product",
    )
    """With `selective`: activations that are kept. `products` are the results of matrix products and convolutions."""


class Training(Section):
    """Training: how long, with which batch sizes and which optimizer."""

    epochs: Annotated[float, Field(gt=0)] | None = None
    """Length of the run in passes over the training set; a fraction rounds up to a whole step. Set this or `steps`."""
    steps: Count | None = None
    """Length of the run in optimizer steps. Set this or `epochs`."""
    global_batch_size: Count
    """Samples (windows) in one optimizer step, over all ranks, accumulation steps and microbatches."""
    gradient_accumulation_steps: Count | None = None
    """Number of parts in which each rank computes its share of the global batch, one after another; left out: 1. Set
    this or `microbatch_size`.
    """
    microbatch_size: Count | None = None
    """Samples per rank in one forward (in a pipeline: per microbatch). Set this or `gradient_accumulation_steps`."""
    optimizer: Optimizer
    """The update rule, by its `type`."""
    lr_schedule: LrScheduleSection = Field(default_factory=_constant)
    """Schedule of the learning rate, by its `type`; left out: constant."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Largest global norm of the gradients; larger gradients are scaled down to it. Left out: no limit."""
    precision: Precision = Field(default_factory=Precision)
    """fp32, bf16, fp16 or fp64, short for `{compute: bf16}`. With bf16 and fp16, parameters, optimizer and gradient
    reduction stay in fp32; fp16 scales the loss.
    """
    compile: bool = False
    """Compile each block with torch.compile; on CUDA, cross entropies too."""
    deterministic: bool = False
    """Whether results are bitwise equal in every run on the same GPUs. Only deterministic kernels are used, and none is
    chosen by trial, which costs some speed. On the CPU results are equal anyway.
    """
    channels_last: bool | Literal["auto"] = "auto"
    """Whether 2d convolutions and the layers after them store images with the channels last in memory: true, false, or
    auto (if it is faster on the device). Only in `single`, `dp` and `ddp`. Results change only by rounding.
    """
    activation_checkpointing: ActivationCheckpointing = Field(default_factory=ActivationCheckpointing)
    """Recompute activations in the backward instead of keeping them. A word is short for `{policy: word}`. none:
    nothing is recomputed; blocks: each block (a copy of the outermost repeat, else a top-level node); all: every node;
    selective: each block, except attention and every second product of matrices or convolution, which are kept.
    """
    ema: Ema | None = None
    """A moving average of the parameters, saved with them; `evaluation.weights: ema` and `--weights ema` use it."""
    early_stop: EarlyStop | None = None
    """Stop when a metric no longer improves."""
    max_time: Clock | None = None
    """Stop the run after this time, such as `11 hours`, and save a checkpoint."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What happens when a gradient is not finite: `stop` ends the run, `skip` skips the step."""


def share_of_run(duration: Duration, training: Training) -> float | None:
    """Return the share of the run that a duration covers (1: all of it). None if the share depends on the size of the
    training set.
    """
    if duration.unit == "%":
        return duration.value / 100
    if training.epochs is not None:
        return duration.value / training.epochs if duration.unit == "epochs" else None
    if training.steps is None:
        return None
    if duration.unit == "steps":
        return duration.value / training.steps
    if duration.unit == "samples":
        return duration.value / (training.steps * training.global_batch_size)
    return None
