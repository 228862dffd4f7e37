"""The plan: all decisions of a run, made before it starts.

Plans are frozen, versioned and stored as JSON with a fingerprint (`plan/codec.py`). Ranks follow the plan and decide
nothing that the plan could contain. Counts are called `num_*`; durations are optimizer steps or seconds. The layout is
in `plan/layout.py`, predictions are in `plan/predictions.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from declarative_train.components.storages import StorageName
from declarative_train.data.spec import BatchSpec, DataSpec, FileRecord
from declarative_train.graph.graph import Graph
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.predictions import ChoicePlan, EstimatePlan, FlopsPlan, MemoryPlan
from declarative_train.plan.recomputation import Policy, Recomputation

PLAN_VERSION = 4


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Parameter of the model. Its name is the same in every mode of parallelism.

    lr_scale       factor of its learning rate
    weight_decay   None: that of its optimizer
    init           component of the initial values; None: the default of its layer
    tie            name of the parameter whose tensor it shares
    optimizer      keys of its own optimizer; None: `training.optimizer`
    idle           frozen because no loss depends on it; its layer still behaves as in training (dropout)
    storage        number format of a frozen weight with fewer bits (`components/storages.py`)
    """

    name: str
    shape: tuple[int, ...]
    num_elements: int
    frozen: bool = False
    lr_scale: float = 1.0
    weight_decay: float | None = None
    init: dict[str, object] | None = None
    tie: str | None = None
    optimizer: dict[str, object] | None = None
    idle: bool = False
    storage: StorageName | None = None


@dataclass(frozen=True, slots=True)
class PartPlan:
    """Tensor of a published file that fills a parameter, alone or together with other tensors, stacked by rows.

    share        its share of the parameter's rows: shares 1, 1, 2 mean a quarter, a quarter and a half
    transpose    the tensor is transposed
    ones         number of leading dimensions of size 1 to remove; if negative, to add
    count        0: the whole tensor is used. Otherwise only `tensor[index, ..., first::step]` is used, and `count` is
                 the size of dimension 0"""

    name: str
    share: int = 1
    transpose: bool = False
    ones: int = 0
    count: int = 0
    index: int = 0
    first: int = 0
    step: int = 1


@dataclass(frozen=True, slots=True)
class TensorMapPlan:
    """Map from the parameters of a model to the tensors of a published file that fill them. `*` in a name stands for
    the index of a copy of a `repeat`.

    entries   dict from parameter to its tensors
    prefix    beginning of tensor names; in some files all names have it, in others none
    ignored   tensors of the file that are not parameters
    alone     the file has no tensors for parameters outside `entries`
    hints     dict from parameter to advice if its tensor has another shape
    drawn     parameters that get random values if the file lacks them
    respelt   dict from the end of a name in older files to the current end
    packed    name of the file's format, if its weights are stored in fewer bits
    grown     dict from parameter to (rows in the file, rows of the parameter, which are more)
    """

    entries: dict[str, list[PartPlan]]
    prefix: str
    ignored: list[str]
    alone: bool = False
    hints: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    respelt: dict[str, str] = field(default_factory=dict)
    packed: str = ""
    grown: dict[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """Block of the model whose weights can come from a published model.

    `node`: path of the node that uses the block. `block`: name of the built-in block. `params`: values that the node
    gives to the block. `config`: config of the published model, `folder`: folder of this config; both are None if the
    node was not made from a config.
    """

    node: str
    block: str
    params: dict[str, object]
    config: dict[str, object] | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsPlan:
    """Plan to start the parameters of `node` ("": of the whole model) from the file at `path`.

    rename    dict from a tensor name in the file, or its prefix, to the name in the model; None: left out
    tensors   how tensors of a published model form the parameters; None for other files
    exclude   selectors of parameters that are not read from the file
    drawn     parameters that the file lacks, which get random values
    """

    node: str
    path: str
    rename: dict[str, str | None]
    tensors: TensorMapPlan | None = None
    exclude: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TermPlan:
    """Loss term. `component`: type and keys of the loss. `input`, `target`, `mask`: names of model outputs or batch
    entries; None if the loss has none. `weight`: factor of the term in the total loss."""

    name: str
    component: dict[str, object]
    input: str
    target: str | None
    mask: str | None
    weight: float


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """Conversion of a metric's input and target to the unit of the target's columns: value * multiply + add.

    `multiply` and `add` have one number for all values, or one for each element of a row of the target. `field`: the
    field of the target. `shape`: shape of a row; () if there is one number for all values.
    """

    field: str
    multiply: tuple[float, ...]
    add: tuple[float, ...]
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """Metric. `component`: its type and keys. `input`, `target`, `mask`: names of model outputs or batch entries; None
    if the metric has none. `ignore_index`: target value that does not count. `class_dim`: dimension of the input that
    has the class scores.

    `unit`: conversion to the unit of the target's columns, so that the metric is in this unit; None if no conversion is
    needed.
    """

    name: str
    component: dict[str, object]
    input: str
    target: str | None
    mask: str | None
    ignore_index: int | None = None
    class_dim: int = -1
    unit: UnitPlan | None = None


@dataclass(frozen=True, slots=True)
class ObjectivePlan:
    terms: tuple[TermPlan, ...]
    metrics: tuple[MetricPlan, ...]


@dataclass(frozen=True, slots=True)
class EarlyStopPlan:
    metric: str
    mode: Literal["min", "max"]
    patience_steps: int


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    num_steps: int
    num_epochs: float | None  # None if the recipe gives the length of the run in steps
    optimizer: dict[str, object]
    lr_schedule: dict[str, object]
    num_warmup_steps: int
    clip_grad_norm: float | None
    precision: Literal["fp32", "bf16", "fp16", "fp64"]  # precision of forward and backward
    compile: bool
    activation_checkpointing: Policy
    non_finite: Literal["stop", "skip"]
    early_stop: EarlyStopPlan | None = None
    max_time_s: float | None = None
    deterministic: bool = False
    ema_decay: float | None = None
    reduce: Literal["fp64", "fp32", "bf16"] = "fp32"
    matmul: Literal["highest", "tf32"] = "highest"
    checkpointing_every: int = 1
    checkpointing_keep: tuple[str, ...] = ("attention", "every_second_product")
    channels_last: bool | Literal["auto"] = "auto"  # plan/channels_last.py

    @property
    def recomputation(self) -> Recomputation:
        keep = self.checkpointing_keep if self.activation_checkpointing == "selective" else ()
        return Recomputation(self.activation_checkpointing, self.checkpointing_every, keep)

    def ema_decay_at(self, step: int) -> float:
        """Return the decay of the moving average of the parameters in step `step` (from 1). It is smaller in early
        steps, because the initial values would otherwise dominate the average for about 1 / (1 - decay) steps."""
        assert self.ema_decay is not None
        return min(self.ema_decay, (1 + step) / (10 + step))

    @property
    def arithmetic(self) -> str:
        """Number format of matrix products, on which the peak rate of a device depends."""
        return "tf32" if self.precision == "fp32" and self.matmul == "tf32" else self.precision


@dataclass(frozen=True, slots=True)
class SamplesPlan:
    """Texts that the model generates at each evaluation, one for each prompt.

    `tokens`: token ids of each prompt. `max_tokens`: maximum number of generated tokens. `temperature`, `top_k`,
    `top_p`: settings for drawing tokens; None: no such limit.
    """

    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Evaluations of a run. `every_steps`: interval; None: only at the end of the run. `sets`: sets to evaluate each
    time. `final_sets`: sets (such as `test`) that are evaluated once, at the end, with the best weights."""

    every_steps: int | None
    sets: tuple[str, ...]
    final_sets: tuple[str, ...]
    max_samples: int | None
    batch_size: int  # rows per rank and forward
    weights: Literal["trained", "ema"] = "trained"
    samples: SamplesPlan | None = None


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    every_steps: int | None  # None: only at the end
    keep: int
    best_metric: str | None
    best_mode: Literal["min", "max"]
    background: bool = True
    base: Literal["reference", "whole"] = "reference"
    on_failure: Literal["stop", "warn"] = "stop"


@dataclass(frozen=True, slots=True)
class PluginSinkPlan:
    """Log sink that a plugin defines: path of the plugin's file, and name of the class."""

    path: str
    class_name: str


@dataclass(frozen=True, slots=True)
class LoggingPlan:
    """Logging of a run.

    `dir`: folder of the run folders. `sinks`: dict from log sink to its settings; the terminal and events.jsonl are
    always written. `plugins`: sinks of plugins. `checkpoints`: folder or URL for the checkpoints of all runs; None: the
    folder of each run. `remote`: URL to which run folders are copied; None: no copy.
    """

    dir: str
    every_steps: int
    sinks: dict[str, dict[str, object]] = field(default_factory=lambda: {"tensorboard": {}})
    plugins: dict[str, PluginSinkPlan] = field(default_factory=dict)
    checkpoints: str | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Complete plan of a run.

    batch_graph  nodes computed from fields alone, on each rank for its rows; their outputs are added to the batch
    graph        the model: reads entries of the batch, returns what losses and metrics read
    draws        paths of nodes whose random numbers depend on the layout
    recipe       dict from each file of the recipe to its text
    memory       predicted memory, one item for each kind of device; () if not predicted
    not_traced   why memory was computed from shapes instead of a trace; "" if it was traced
    estimate     predicted time; None if the hardware is unknown
    choice       candidates of `parallelism: auto`; None if the recipe chose the mode
    settings     dict from dotted path to value of the resolved recipe, only for comparing runs
    language     version of the recipe language
    fingerprint  hash of what decides the numbers, the same for every layout
    identity     hash of the whole plan

    float32 in both graphs means float64 if the precision is fp64.
    """

    version: int
    dtrain_version: str
    name: str
    seed: int
    files: tuple[FileRecord, ...]
    overrides: tuple[str, ...]
    plugins: tuple[str, ...]
    data: DataSpec
    batch: BatchSpec
    batch_graph: Graph
    graph: Graph
    parameters: tuple[ParameterPlan, ...]
    objective: ObjectivePlan
    training: TrainingPlan
    evaluation: EvaluationPlan | None
    checkpoint: CheckpointPlan | None
    logging: LoggingPlan
    layout: LayoutPlan
    weights: tuple[WeightsPlan, ...] = ()
    published: tuple[PublishedPlan, ...] = ()
    meta: dict[str, object] = field(default_factory=dict)
    draws: tuple[str, ...] = ()
    recipe: dict[str, str] = field(default_factory=dict)
    flops: FlopsPlan = field(default=FlopsPlan(0, 0))
    memory: tuple[MemoryPlan, ...] = ()
    not_traced: str = ""
    estimate: EstimatePlan | None = None
    choice: ChoicePlan | None = None
    settings: dict[str, object] = field(default_factory=dict)
    language: int = 1
    fingerprint: str = ""
    identity: str = ""
