"""`training`: how long, in what batches, with which optimizer."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.components.component import LrSchedule, Optimizer
from declarative_train.components.durations import Clock, Progress
from declarative_train.core.duration import Duration
from declarative_train.core.tensor_spec import DType
from declarative_train.recipe.sections.section import Section

Count = Annotated[int, Field(ge=1)]


class LrScheduleSection(Section):
    """A factor on every group's lr over the run; `warmup` lies inside it. Its other keys belong to its `type`."""

    inline: ClassVar[str | None] = "component"

    component: LrSchedule
    warmup: Progress | None = None
    """How long the factor rises to 1, such as `100 steps` or `5%`; left out: no warm-up. It rises in equal parts: of N
    steps the n-th has the factor n / (N + 1), so that the first one trains and the one after them has 1."""


def _constant() -> LrScheduleSection:
    from declarative_train.components.lr_schedules.factors import Constant

    return LrScheduleSection(component=Constant())


class EarlyStop(Section):
    """Stop when a metric no longer improves."""

    metric: str
    """What to watch: `<set>/loss`, `<set>/loss/<term>` or `<set>/<metric>`, such as validation/loss."""
    mode: Literal["min", "max"]
    """Whether less or more is better."""
    patience: Progress
    """How long to wait for a better value, such as `3 epochs`."""


class Ema(Section):
    """A moving average of each trained parameter: average x d + parameter x (1 - d) after each step, counted from 1,
    with d = min(decay, (1 + step) / (10 + step))."""

    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9999
    """Part of the average that a step keeps: it looks back about 1 / (1 - decay) steps; less far in the first ones."""


class Precision(Section):
    """What a run computes in, and what its gradients travel in; the whole table is in docs/precision.md."""

    compute: Literal["fp32", "bf16", "fp16", "fp64"] = "fp32"
    """Forward and backward. bf16 and fp16: parameters and optimizer stay in fp32; fp16 scales the loss."""
    reduce: Literal["fp32", "bf16"] | None = None
    """Gradients on their way between ranks; left out: as wide as the parameters. bf16 halves their bytes, and rounds
    what is added up."""
    matmul: Literal["highest", "tf32"] = "highest"
    """Products of float32 matrices: tf32 rounds their factors to 10 bits, on GPUs that have it several times as fast;
    what a run computes in bf16 or fp16 is none of these."""

    @property
    def of_fields(self) -> DType:
        """In which a run holds the numbers of its data, where a field does not say so itself."""
        return "float64" if self.compute == "fp64" else "float32"


class ActivationCheckpointing(Section):
    """What of the forward is computed again in the backward, in the place of keeping its activations."""

    policy: Literal["none", "selective", "blocks", "all"] = "none"
    """blocks: of each block (a copy of the outermost repeat, else a top-level node); all: of every node; selective: of
    each block, but for what `keep` names."""
    every: Count = 1
    """With `blocks` and `selective`: of so many blocks one, the first, the fourth and so on for 3. The others keep
    theirs."""
    keep: Annotated[tuple[Literal["attention", "products", "every_second_product"], ...], Field(min_length=1)] = (
        "attention",
        "every_second_product",
    )
    """With `selective`: what is not computed again. `products` are those of matrices, and convolutions."""


class Training(Section):
    """How long, in what batches, with which optimizer."""

    epochs: Annotated[float, Field(gt=0)] | None = None
    """Length of the run in passes over the training set; a fraction rounds up to a whole step. Or `steps`."""
    steps: Count | None = None
    """Length of the run in optimizer steps. Or `epochs`."""
    global_batch_size: Count
    """Samples (windows) in one optimizer step, over all ranks, accumulation steps and microbatches."""
    gradient_accumulation_steps: Count | None = None
    """Parts in which each rank works through its share of the global batch. Or `microbatch_size`; default 1."""
    microbatch_size: Count | None = None
    """Samples per rank in one forward (in a pipeline: per microbatch). Or `gradient_accumulation_steps`."""
    optimizer: Optimizer
    """The update rule, by its `type`."""
    lr_schedule: LrScheduleSection = Field(default_factory=_constant)
    """How the learning rate moves over the run, by its `type`; left out: it stays as it is."""
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Scale the gradients down when their global norm is larger; left out: never."""
    precision: Precision = Field(default_factory=Precision)
    """fp32, bf16, fp16 or fp64, short for `{compute: bf16}`. bf16 and fp16: compute in it, parameters, optimizer and
    gradient reduction in fp32; fp16 scales the loss."""
    compile: bool = False
    """Compile each block with torch.compile."""
    deterministic: bool = False
    """The same bits in every run on the same GPUs, at some speed: only kernels that have them, none chosen by trial.
    On the CPU they are the same anyway."""
    channels_last: bool | Literal["auto"] = "auto"
    """The channels of images last in memory, behind convolutions over them: true, false, or auto, where kernels of the
    device take less time so. In `single`, `dp` and `ddp`; no number depends on it but by rounding."""
    activation_checkpointing: ActivationCheckpointing = Field(default_factory=ActivationCheckpointing)
    """Recompute activations in the backward instead of keeping them; a word is short for `{policy: word}`. none;
    blocks: of each block (a copy of the outermost repeat, else a top-level node); all: of every node; selective: of
    each block, but for attention and every second product of matrices or convolution, which are kept."""
    ema: Ema | None = None
    """A moving average of the parameters, saved beside them; `evaluation.weights: ema` and `--weights ema` use it."""
    early_stop: EarlyStop | None = None
    """Stop when a metric no longer improves."""
    max_time: Clock | None = None
    """Stop with a checkpoint after this time, such as `11 hours`."""
    non_finite: Literal["stop", "skip"] = "stop"
    """When a gradient is not finite: stop the run, or skip the step."""


def share_of_run(duration: Duration, training: Training) -> float | None:
    """What part of a run it is, as far as a recipe alone can tell; None where it takes the size of the data."""
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
