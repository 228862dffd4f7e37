"""Events of a run. The training loop yields them; sinks (terminal, files, TensorBoard) write them.

Values are plain Python numbers. Only at a logging step does an event have a loss, because the host must wait for the
device to read it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Layer, field or loss in the drawn graph, named by its path (`layers/0/attn`). `shape`: shape of its first output,
    with -1 for the batch dimension."""

    path: str
    operation: str
    inputs: tuple[str, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunStarted:
    name: str
    run_dir: str
    mode: str
    device: str
    num_ranks: int
    num_steps: int
    steps_per_epoch: int | None
    first_step: int  # step of the checkpoint that this run resumes from, or 0
    num_parameters: int
    plan_brief: str  # a few lines, for the terminal
    plan_text: str
    hyperparameters: dict[str, str | int | float | bool]
    time_unix_s: float
    predicted: dict[str, float] = field(
        default_factory=dict
    )  # step_ms, memory_gib, mfu: if the plan was made for this device
    graph: tuple[GraphNode, ...] = ()  # not written to events.jsonl: it is in the plan


@dataclass(frozen=True, slots=True)
class StepDone:
    """Event of a logging step. Loss, metrics, times and rates are means over the steps since the previous logging step.
    `lr` and `grad_norm` are values of this step; `grad_norm` is None if it was not computed."""

    step: int
    epoch: int
    loss: float
    terms: dict[str, float]  # loss per term, when there is more than one
    metrics: dict[str, float]
    lr: dict[str, float]  # by parameter group; one group is called "lr"
    grad_norm: float | None
    samples_per_s: float
    tokens_per_s: float | None
    data_wait_s: float  # mean per step
    memory_bytes: int  # peak of this rank's device (resident set on CPU)
    mfu: float | None  # model FLOPs over the devices' peak FLOPs; None on the CPU
    time_unix_s: float
    step_s: float | None = None  # mean over the window, without evaluations and checkpoints


@dataclass(frozen=True, slots=True)
class Progress:
    """Event of a completed step, for the progress bar. It has no values from the device, so the host need not wait."""

    step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """Event of the evaluation of one set. Keys of `values`: `<set>/<metric>`, `<set>/loss` and `<set>/loss/<term>`.
    `seconds`: duration of the evaluation."""

    step: int
    epoch: int
    set: str
    values: dict[str, float]
    num_samples: int
    seconds: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class Picture:
    """Image as bytes. `pixels` has one byte per channel of each pixel, row by row. `channels` is 1 or 3."""

    height: int
    width: int
    channels: int
    pixels: bytes


@dataclass(frozen=True, slots=True)
class SamplePrediction:
    """Prediction for one sample. `sample`: the sample's index in its set. `probability`: probability of the predicted
    class."""

    sample: int
    target: str
    predicted: str
    probability: float
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class ClassesPredicted:
    """Event with a confusion matrix and the predictions for a few samples, for drawing. It is not written to
    events.jsonl.

    `name`: the target, or "" if the model predicts only one. `confusion[i][j]`: number of items of class i that were
    predicted as class j. `answers`: predictions for the samples; each evaluation uses the same samples."""

    step: int
    set: str
    name: str
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    answers: tuple[SamplePrediction, ...]
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class TextsWritten:
    """Event with the texts that the model generated at an evaluation, one per prompt."""

    step: int
    prompts: list[str]
    texts: list[str]
    seconds: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class EpochDone:
    """Event of the end of an epoch. `values`: means of losses and metrics over the epoch, and results of evaluations at
    its end."""

    epoch: int
    step: int
    values: dict[str, float]
    seconds: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    step: int
    path: str
    is_best: bool
    seconds: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Event with a message for the user, such as the chosen device. `is_warning`: the message reports a problem, such
    as a damaged checkpoint, and is printed even with --quiet."""

    message: str
    time_unix_s: float
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """Event with the predicted and the measured peak memory of an early step, in bytes, one number per rank. `how`:
    what was measured, as text."""

    step: int
    predicted: list[int]
    measured: list[int]
    how: str
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Event of the end of a session. `status`: finished, early_stop, or stopped (by a signal, the time limit or
    --max-steps). `seconds`: duration of this session."""

    step: int
    status: str
    values: dict[str, float] = field(default_factory=dict)  # last value of every set and metric, and best/<metric>
    seconds: float = 0.0
    time_unix_s: float = 0.0
    value_steps: dict[str, int] = field(default_factory=dict)  # step whose weights each value was measured with


Event = (
    RunStarted
    | StepDone
    | Progress
    | EvaluationDone
    | ClassesPredicted
    | TextsWritten
    | EpochDone
    | CheckpointSaved
    | Notice
    | MemoryMeasured
    | RunEnded
)
