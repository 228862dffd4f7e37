"""What a run tells: the loop yields events, sinks write them.

Values are plain Python numbers: an event with a loss exists only at a logging step, where the host waits anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A layer, field or loss by its path (`layers/0/attn`); `shape` of its first output, -1 for the batch."""

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
    first_step: int  # the step after which this run goes on: 0, or the checkpoint's
    num_parameters: int
    plan_brief: str  # a few lines, for the terminal
    plan_text: str
    hyperparameters: dict[str, str | int | float | bool]
    time_unix_s: float
    predicted: dict[str, float] = field(
        default_factory=dict
    )  # step_ms, memory_gib, mfu: where the plan is of this device
    graph: tuple[GraphNode, ...] = ()  # not in the record of a run: the plan has it


@dataclass(frozen=True, slots=True)
class StepDone:
    """A logging step: means over the window since the last one."""

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
    mfu: float | None  # model FLOPs over what the devices could do; None on the CPU
    time_unix_s: float
    step_s: float | None = None  # mean over the window, without evaluations and checkpoints


@dataclass(frozen=True, slots=True)
class Progress:
    """Every step, without a device value: for the progress bar."""

    step: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """`values` are keyed `<set>/<metric>`, `<set>/loss`, `<set>/loss/<term>`."""

    step: int
    epoch: int
    set: str
    values: dict[str, float]
    num_samples: int
    seconds: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class Picture:
    """`pixels`: a byte for each channel, pixel by pixel, row by row. `channels`: 1 or 3."""

    height: int
    width: int
    channels: int
    pixels: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model says of one sample, by its number in the set. `probability`: of the class that it says."""

    sample: int
    target: str
    predicted: str
    probability: float
    picture: Picture | None = None


@dataclass(frozen=True, slots=True)
class ClassesPredicted:
    """What an evaluation took for what, for pictures: not in the record of a run. `name`: of the target, where the
    model has several. `confusion[i][j]`: items of class i that were taken for class j. `answers`: the same few samples
    of the set each time."""

    step: int
    set: str
    name: str
    classes: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    answers: tuple[Answer, ...]
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class TextsWritten:
    """What the model wrote at an evaluation, behind each prompt."""

    step: int
    prompts: list[str]
    texts: list[str]
    seconds: float
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class EpochDone:
    """The training means over the epoch, and the evaluations made at its end."""

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
    """Something the user should know that is not a mistake: the device chosen. `is_warning`: also where little is to be
    said (--quiet), as something is amiss: a damaged checkpoint that was passed over."""

    message: str
    time_unix_s: float
    is_warning: bool = False


@dataclass(frozen=True, slots=True)
class MemoryMeasured:
    """The peak of an early step beside the plan's, in bytes, rank by rank. `how`: what was counted."""

    step: int
    predicted: list[int]
    measured: list[int]
    how: str
    time_unix_s: float


@dataclass(frozen=True, slots=True)
class RunEnded:
    """`status`: finished, early_stop, stopped (signal or time limit)."""

    step: int
    status: str
    values: dict[str, float] = field(default_factory=dict)  # last of every set and metric, and best/<metric>
    seconds: float = 0.0
    time_unix_s: float = 0.0
    value_steps: dict[str, int] = field(default_factory=dict)  # the step whose weights each value is of


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
