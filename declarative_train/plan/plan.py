"""The plan: all decisions of a run, made once.

Plans are frozen, versioned, fingerprinted and stored as JSON (`plan/codec.py`). The ranks follow the plan and decide
nothing that it could show. Counts are `num_*`; durations are optimizer steps or seconds. `plan/layout.py` has the
layout, `plan/predictions.py` the predictions.
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

PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Parameter of the model, by the name it has in every mode.

    `init` is an init component, or None for the layer's own rule; `tie` the name of the parameter it shares storage
    with; `optimizer` the fields of another optimizer than training.optimizer, or None. `lr_scale` and `weight_decay`
    are as selected (weight_decay None: the optimizer's own). `idle`: frozen in every mode because no loss term reaches
    it, not by the recipe; its module behaves as in training. `storage`: number format of a frozen weight, if it differs
    from that of the computation (`components/storages.py`).
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
    """Tensor of a published file that fills part of a parameter: its `share` of the parameter's rows, whether to
    transpose it, and the number of leading dimensions of size 1."""

    name: str
    share: int
    transpose: bool
    ones: int = 0


@dataclass(frozen=True, slots=True)
class TensorMapPlan:
    """Map from parameters to the tensors of a published file that fill them; `*` in a name is the number of a copy.

    `prefix` is dropped if no name in the file begins with it; names in `ignored` are not parameters. `alone`: the
    entries are all, other parameters are not in the file. `hints`: advice for a parameter of another shape. `drawn`:
    parameters of heads, which a file may lack. `respelt`: endings of names in old files -> current endings.
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
    """Node that a published model can fill: a shipped block with its params, and the config of the model it was made
    from."""

    node: str
    block: str
    params: dict[str, object]
    config: dict[str, object] | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsPlan:
    """Start values from a file for the parameters below `node` ("" for all), except those that `exclude` selects and
    those in `drawn`, which the file lacks."""

    node: str
    path: str
    rename: dict[str, str | None]
    tensors: TensorMapPlan | None = None
    exclude: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TermPlan:
    """Loss term. `input`, `target`, `mask` name an output of the model graph or an entry of the batch."""

    name: str
    component: dict[str, object]
    input: str
    target: str | None
    mask: str | None
    weight: float


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """Conversion of a target to the unit of its columns: value * multiply + add. There is one number of each, or one
    for each element of a row of `field`, in the order of its `shape`."""

    field: str
    multiply: tuple[float, ...]
    add: tuple[float, ...]
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """Metric. `unit` is set if the metric has a unit and the target is scaled or normalised."""

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
        """Return the decay of the moving average in optimizer step `step`, which counts from 1.

        A fixed decay would keep the start values for 1 / (1 - decay) steps, which may be longer than the run.
        """
        assert self.ema_decay is not None
        return min(self.ema_decay, (1 + step) / (10 + step))

    @property
    def arithmetic(self) -> str:
        """Precision of the matrix products, whose peak rate counts."""
        return "tf32" if self.precision == "fp32" and self.matmul == "tf32" else self.precision


@dataclass(frozen=True, slots=True)
class SamplesPlan:
    """Texts that are generated at each evaluation. `tokens` are those of each prompt."""

    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Evaluations. `every_steps` None: only at the end of the run. `final_sets` (`test`) are evaluated once, at the
    end, with the best weights."""

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
    """Logging. `sinks`: settings by name of the sinks other than the terminal and events.jsonl; `plugins`: where the
    code of plugins' sinks is. `checkpoints`: the folder or URL for the checkpoints of all runs; None: they are in the
    folder of their run."""

    dir: str
    every_steps: int
    sinks: dict[str, dict[str, object]] = field(default_factory=lambda: {"tensorboard": {}})
    plugins: dict[str, PluginSinkPlan] = field(default_factory=dict)
    checkpoints: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Complete plan of a run.

    `batch_graph` holds the nodes computed from fields alone: every rank evaluates it on its rows, without gradients,
    and its outputs join the fields in the batch. `graph` takes its inputs from that batch by name; its outputs are the
    edges that the objective reads. float32 in either means the precision of the run: float64 with fp64. `recipe` holds
    the texts of the recipe's files as written. `draws` are the paths of the nodes that draw random numbers, which are
    reproducible on one layout only. `memory` has a row for each kind of device, none if no trace was requested;
    `not_traced` gives the reason if a trace failed and its rows are derived. `estimate` is set if the hardware is
    known, `choice` if the planner chose the mode. `settings` are the values of the resolved recipe by their dotted
    paths (`plan/settings.py`), by which runs are compared; they decide nothing. `language` is the version of the recipe
    language.

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
