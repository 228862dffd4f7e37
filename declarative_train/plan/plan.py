"""The plan: who does what, where and when, decided once.

Frozen, versioned, fingerprinted, JSON round-trip (`plan/codec.py`). The ranks obey it and take no decision that it
could have shown. Counts are `num_*`; durations are optimizer steps or seconds. Its layout stands in `plan/layout.py`,
what it foretells in `plan/predicted.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from declarative_train.components.storages import StorageName
from declarative_train.data.spec import BatchSpec, DataSpec, FileRecord
from declarative_train.graph.graph import Graph
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.predicted import ChoicePlan, EstimatePlan, FlopsPlan, MemoryPlan
from declarative_train.plan.recomputation import Policy, Recomputation

PLAN_VERSION = 2


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """One parameter of the model, by the name it has in every mode.

    `init` is an init component, or None for the layer's own rule; `tie` the name of the parameter it shares storage
    with; `optimizer` the fields of another optimizer than training.optimizer, or None. `lr_scale` and `weight_decay`
    as selected (weight_decay None: the optimizer's own). `idle`: frozen in every mode because no loss term reaches it,
    not because the recipe says so: its module behaves as in training. `storage`: what a frozen weight is held in, if
    another than what is computed with (`components/storages.py`).
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
    """A tensor of a published file: `share` in the rows of a parameter, its rows and columns changed or not, `ones`
    dimensions of size 1 before them."""

    name: str
    share: int
    transpose: bool
    ones: int = 0


@dataclass(frozen=True, slots=True)
class TensorMapPlan:
    """Parameters by name, with `*` for the number of a copy, and the tensors of a published file that they are made
    of. Where no name in the file begins with `prefix`, it is left out; names that are `ignored` hold no parameter.
    `alone`: no other parameter has its values there. `hints`: what to do about a parameter of another shape. `drawn`:
    parameters of heads, which a file may lack. `respelt`: ends of names in old files, and those of today."""

    entries: dict[str, list[PartPlan]]
    prefix: str
    ignored: list[str]
    alone: bool = False
    hints: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)
    respelt: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PublishedPlan:
    """A node that a published model can be: a shipped block with its params, and the model that it is made after."""

    node: str
    block: str
    params: dict[str, object]
    config: dict[str, object] | None = None
    folder: str | None = None


@dataclass(frozen=True, slots=True)
class WeightsPlan:
    """Start values from a file, for the parameters below `node` ("" for all) but those that `exclude` selects and those
    that are `drawn`, as the file lacks them."""

    node: str
    path: str
    rename: dict[str, str | None]
    tensors: TensorMapPlan | None = None
    exclude: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TermPlan:
    """A loss term. `input`, `target`, `mask` name an output of the model graph or an entry of the batch."""

    name: str
    component: dict[str, object]
    input: str
    target: str | None
    mask: str | None
    weight: float


@dataclass(frozen=True, slots=True)
class UnitPlan:
    """How a target goes back to the unit of its columns: value * multiply + add. One number of each, or one for each
    element of a row of `field`, in the order of its `shape`."""

    field: str
    multiply: tuple[float, ...]
    add: tuple[float, ...]
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricPlan:
    """`unit`: of a metric that has one, where the target is scaled or normalised."""

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
    num_epochs: float | None  # as asked for; None when the recipe gives steps
    optimizer: dict[str, object]
    lr_schedule: dict[str, object]
    num_warmup_steps: int
    clip_grad_norm: float | None
    precision: Literal["fp32", "bf16", "fp16", "fp64"]  # what forward and backward compute in
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
        """Of the matrix products: whose peak counts."""
        return "tf32" if self.precision == "fp32" and self.matmul == "tf32" else self.precision


@dataclass(frozen=True, slots=True)
class SamplesPlan:
    """Texts that are written at each evaluation. `tokens`: of each prompt."""

    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    max_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """`every_steps` None: only at the end of the run. `final_sets` are looked at once, at the end, on the best
    weights (`test`)."""

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
    background: bool = False
    base: Literal["reference", "whole"] = "reference"


@dataclass(frozen=True, slots=True)
class PluginSinkPlan:
    """The file and the class of a sink that is not ours."""

    path: str
    class_name: str


@dataclass(frozen=True, slots=True)
class LoggingPlan:
    """`sinks`: beside the terminal and events.jsonl, by name with their settings. `plugins`: of those that are not
    ours. `checkpoints`: the folder or URL for those of all runs; None: they are in the folder of their run."""

    dir: str
    every_steps: int
    sinks: dict[str, dict[str, object]] = field(default_factory=lambda: {"tensorboard": {}})
    plugins: dict[str, PluginSinkPlan] = field(default_factory=dict)
    checkpoints: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """`batch_graph` holds the nodes computed from fields alone: every rank evaluates it on its rows, without
    gradients, and its outputs join the fields in the batch; `graph` takes its inputs from that batch by name, and its
    outputs are the edges that the objective reads. `recipe` holds the texts of the recipe's files as they were typed.
    float32 in either stands for what the run computes in: float64 with fp64. `draws` are the paths of the nodes that
    draw random numbers, whose bits hold on one layout only. `memory` has a row for each kind of device, none where
    nobody asked for a trace; `not_traced` says why its rows are derived, where a trace failed. `estimate` is there
    where the hardware is known, `choice` where the recipe left the mode to the planner. `settings` are the values of
    the resolved recipe by their dotted paths (`plan/settings.py`): what runs are told apart by; they decide nothing.

    `language` is the number of the recipe language that the recipe is written in.

    `fingerprint` covers everything that decides the numbers, `layout` and `logging` aside, so that a checkpoint knows
    its model under another layout; `identity` covers the whole plan.
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
