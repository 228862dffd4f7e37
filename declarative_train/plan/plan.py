"""The plan: all decisions of a run, made before it starts.

Plans are frozen, versioned, fingerprinted and stored as JSON (`plan/codec.py`). Ranks follow the plan; they decide
nothing that the plan could show. Counts are called `num_*`; durations are optimizer steps or seconds. The layout is in
`plan/layout.py`, predictions are in `plan/predictions.py`.
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

PLAN_VERSION = 3


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Parameter of the model, by its name, which is the same in every mode.

    `init`: the component that sets the initial values, None for the layer's own rule. `tie`: the parameter whose
    storage it shares. `optimizer`: the fields of its own optimizer, None for training.optimizer. `weight_decay` None:
    that of the optimizer. `idle`: it is frozen because no loss depends on it, not by the recipe; its module behaves as
    in training. `storage`: the number format of a frozen weight that is stored in fewer bits
    (`components/storages.py`).
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
    """Tensor of a file that fills part of a parameter: its `share` of the sum of the shares of all parts, in rows, and
    whether to transpose it. `ones`: the number of leading dimensions of size 1 that the file's tensor has in addition;
    below 0: that the parameter has in addition."""

    name: str
    share: int = 1
    transpose: bool = False
    ones: int = 0


@dataclass(frozen=True, slots=True)
class TensorMapPlan:
    """Map from parameters to the tensors of a published file that fill them; `*` in a name is the number of a copy.

    `prefix`: beginning of all names, which a file may lack as a whole. `ignored`: names in the file that are not
    parameters. `alone`: parameters without an entry are not in the file. `hints`: advice if a parameter has another
    shape than its tensor. `drawn`: parameters of output layers, which a file may lack; they keep their random initial
    values. `respelt`: endings of names in older files -> current endings.
    """

    entries: dict[str, list[PartPlan]]
    prefix: str
    ignored: list[str]
    alone: bool = False
    hints: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    respelt: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """Node whose weights a published model can provide: a block that comes with the package, its params, and the config
    of the model that it was made from."""

    node: str
    block: str
    params: dict[str, object]
    config: dict[str, object] | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsPlan:
    """Initial values from a file for the parameters below `node` ("" for all). Left out are those that `exclude`
    selects, and those in `drawn`, which the file lacks."""

    node: str
    path: str
    rename: dict[str, str | None]
    tensors: TensorMapPlan | None = None
    exclude: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TermPlan:
    """Loss term. `input`, `target`, `mask`: the name of an output of the model or of a batch entry."""

    name: str
    component: dict[str, object]
    input: str
    target: str | None
    mask: str | None
    weight: float


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """Conversion of a target to the unit of its columns: value * multiply + add. Both are one number, or one for each
    element of a row of `field`, which has the given `shape`."""

    field: str
    multiply: tuple[float, ...]
    add: tuple[float, ...]
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """Metric. `unit`: set if the metric is measured in the target's unit and the target is scaled or normalised."""

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
    num_epochs: float | None  # as in the recipe; None when the recipe gives steps
    optimizer: dict[str, object]
    lr_schedule: dict[str, object]
    num_warmup_steps: int
    clip_grad_norm: float | None
    precision: Literal["fp32", "bf16", "fp16", "fp64"]  # of forward and backward
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
        steps, since a fixed decay keeps the initial values for about 1 / (1 - decay) steps, perhaps longer than the
        run."""
        assert self.ema_decay is not None
        return min(self.ema_decay, (1 + step) / (10 + step))

    @property
    def arithmetic(self) -> str:
        """Number format of matrix products, by which a device's peak rate is chosen."""
        return "tf32" if self.precision == "fp32" and self.matmul == "tf32" else self.precision


@dataclass(frozen=True, slots=True)
class SamplesPlan:
    """Texts to generate at each evaluation. `tokens`: the token numbers of each prompt."""

    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Evaluations. `every_steps` None: only at the end of the run. `final_sets`, such as `test`, are evaluated once at
    the end, with the best weights."""

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
    """File and class of a sink from a plugin."""

    path: str
    class_name: str


@dataclass(frozen=True, slots=True)
class LoggingPlan:
    """Logging. `sinks`: settings of sinks other than the terminal and events.jsonl, by name. `plugins`: the files that
    define sinks of the user. `checkpoints`: the folder or URL for the checkpoints of all runs; None: in each run's own
    folder. `remote`: the URL that runs are copied to."""

    dir: str
    every_steps: int
    sinks: dict[str, dict[str, object]] = field(default_factory=lambda: {"tensorboard": {}})
    plugins: dict[str, PluginSinkPlan] = field(default_factory=dict)
    checkpoints: str | None = None
    remote: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Complete plan of a run.

    `batch_graph`: the nodes computed from fields alone. Every rank evaluates them on its rows, without gradients; their
    outputs join the fields in the batch. `graph`: the model; it reads batch entries by name, and its outputs are the
    values that losses and metrics read. float32 in either stands for the precision of the run: float64 with fp64.

    `recipe`: the texts of the recipe's files as written. `settings`: the values of the resolved recipe by dotted path,
    by which runs are compared (`plan/settings.py`); they decide nothing. `language`: the version of the recipe
    language. `draws`: the paths of nodes that draw random numbers; these can be reproduced on one layout only.

    `memory`: one row for each kind of device; none if no trace was requested. `not_traced`: why a trace failed and the
    rows are computed otherwise. `estimate`: set if the hardware is known. `choice`: set if the planner chose the mode.

    `fingerprint` covers everything that decides the numbers, not `layout` and `logging`, so that a checkpoint
    recognises its model under another layout; `identity` covers the whole plan.
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
