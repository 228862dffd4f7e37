"""The plan: who does what, where and when, decided once.

Frozen, versioned, fingerprinted, JSON round-trip (`plan/codec.py`). The ranks obey it and take no decision that it
could have shown. Counts are `num_*`; durations are optimizer steps or seconds.

Over 400 lines because all that a plan holds stands side by side, as its JSON has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from declarative_train.data.spec import BatchSpec, DataSpec, FileRecord
from declarative_train.graph.graph import Graph
from declarative_train.terms.mesh import DATA_AXES, Axis, Mesh, size_of

PLAN_VERSION = 2
TAKEN = "taken"  # the verdict on the candidate that a plan runs


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """One parameter of the model, by the name it has in every mode.

    `init` is an init component, or None for the layer's own rule; `tie` the name of the parameter it shares storage
    with; `optimizer` the fields of another optimizer than training.optimizer, or None. `lr_scale` and `weight_decay`
    as selected (weight_decay None: the optimizer's own). `idle`: frozen in every mode because no loss term reaches it,
    not because the recipe says so: its module behaves as in training.
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


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A tensor of a published file: `share` in the rows of a parameter, its rows and columns changed or not."""

    name: str
    share: int
    transpose: bool


@dataclass(frozen=True, slots=True)
class TensorMapPlan:
    """Parameters by name, with `*` for the number of a copy, and the tensors of a published file that they are made
    of. Where no name in the file begins with `prefix`, it is left out; names that are `ignored` hold no parameter."""

    entries: dict[str, list[PartPlan]]
    prefix: str
    ignored: list[str]


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
    """Start values from a file, for the parameters below `node` ("" for all)."""

    node: str
    path: str
    rename: dict[str, str | None]
    tensors: TensorMapPlan | None = None


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
    activation_checkpointing: Literal["none", "selective", "blocks", "all"]
    non_finite: Literal["stop", "skip"]
    early_stop: EarlyStopPlan | None = None
    max_time_s: float | None = None
    deterministic: bool = False
    ema_decay: float | None = None
    reduce: Literal["fp64", "fp32", "bf16"] = "fp32"
    matmul: Literal["highest", "tf32"] = "highest"

    @property
    def arithmetic(self) -> str:
        """Of the matrix products: whose peak counts."""
        return "tf32" if self.precision == "fp32" and self.matmul == "tf32" else self.precision


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


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    every_steps: int | None  # None: only at the end
    keep: int
    best_metric: str | None
    best_mode: Literal["min", "max"]


@dataclass(frozen=True, slots=True)
class PluginSinkPlan:
    """The file and the class of a sink that is not ours."""

    path: str
    class_name: str


@dataclass(frozen=True, slots=True)
class LoggingPlan:
    """`sinks`: beside the terminal and events.jsonl, by name with their settings. `plugins`: of those that are not
    ours."""

    dir: str
    every_steps: int
    sinks: dict[str, dict[str, object]] = field(default_factory=lambda: {"tensorboard": {}})
    plugins: dict[str, PluginSinkPlan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankPlan:
    """`coordinates` by mesh axis; `device` is the index on its node; `stages` the pipeline stages it holds."""

    rank: int
    node: int
    local_rank: int
    device: int
    coordinates: dict[str, int]
    stages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WireBytes:
    """What a sample sends from a stage to the next, and the gradients that come back."""

    forward: int
    backward: int


@dataclass(frozen=True, slots=True)
class SharedParameter:
    """A parameter that several stages compute with, by a tie or because one calls a node of another again. Each of
    `stages` holds a copy, the first one counts it (norms); gradients are added up over them before anything else."""

    name: str
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """`stages[i]` are the node paths of stage i, `wires[i]` what travels from stage i to i + 1, under the names of
    `graph.stage_graphs.stage_graphs(open_blocks(plan.graph, layout.units), stages)`, which makes the stages' graphs.

    `schedule` is the recipe's word (`1f1b`). `num_microbatches` are those of one optimizer step: accumulation steps
    are made microbatches. `grid[rank][time]` is an action ("0F1": stage 0, forward of microbatch 1) or "" when idle.
    `last_stage_rank` is the pipeline coordinate that holds the loss (0 in the V schedules). `num_parameters` and
    `wire_elements` (per sample) count elements, stage by stage. `wire_dtypes[i]` are those in which `wires[i]` travel,
    `wire_bytes[i]` what they weigh.
    """

    schedule: str
    num_stages: int
    num_microbatches: int
    stages: tuple[tuple[str, ...], ...]
    wires: tuple[tuple[str, ...], ...]
    grid: tuple[tuple[str, ...], ...]
    last_stage_rank: int
    num_parameters: tuple[int, ...]
    wire_elements: tuple[int, ...] = ()
    wire_dtypes: tuple[tuple[str, ...], ...] = ()
    wire_bytes: tuple[WireBytes, ...] = ()
    shared: tuple[SharedParameter, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardingPlan:
    """Which parameters are gathered together: each unit, the nodes `first` before them all, the nodes `last` after them
    all, and the rest, of which `shared` are nodes that several places use.

    `reshard`: what is gathered is freed between forward and backward (True), kept (False), or spread over so many
    neighbours (a number); `last` and the rest are always kept. `keeps_gradients`: over the chunks of a step each rank
    adds up whole gradients, to reduce them once; otherwise they are reduced after every chunk.
    """

    reshard: bool | int = True
    keeps_gradients: bool = True
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """`mode` is the recipe's word, to be shown; what it means is the `mesh` of the ranks, and `num_copies`: of dp, the
    devices of the one process, `devices` being their indices (1 elsewhere).

    `device` is cuda, cpu, or auto (decided where it runs: CUDA if the GPUs are there). `units` are the paths of the
    blocks: what is wrapped, checkpointed, compiled.
    """

    mode: Literal["single", "dp", "ddp", "fsdp", "pipeline"]
    device: Literal["auto", "cuda", "cpu"]
    num_nodes: int
    gpus_per_node: int
    mesh: Mesh
    ranks: tuple[RankPlan, ...]
    units: tuple[str, ...]
    num_copies: int = 1
    devices: tuple[int, ...] = ()
    hardware: str | None = None
    pipeline: PipelinePlan | None = None
    sharding: ShardingPlan | None = None

    def size(self, *axes: Axis) -> int:
        """The ranks along these axes of the mesh; 1 along one that it does not have."""
        return size_of(self.mesh, *axes)

    def has(self, axis: Axis) -> bool:
        """Also where one rank is all there is along it."""
        return any(each.name == axis for each in self.mesh)

    @property
    def is_one_process(self) -> bool:
        return not self.mesh

    @property
    def scatters(self) -> bool:
        """The one process splits each batch over copies of the model (dp)."""
        return bool(self.devices)

    @property
    def is_sharded(self) -> bool:
        return self.has("shard")

    @property
    def num_shards(self) -> int:
        return self.size("shard")

    @property
    def data_parallel_size(self) -> int:
        """Ranks, or copies of one process, that take different rows of a batch."""
        return self.size(*DATA_AXES) * self.num_copies

    @property
    def num_devices(self) -> int:
        return len(self.ranks) * self.num_copies

    @property
    def place_word(self) -> str:
        """What one of those is called that take different rows."""
        if self.scatters:
            return "device"
        return "rank" if self.mesh else "process"


@dataclass(frozen=True, slots=True)
class FlopsPlan:
    """Floating-point operations for one sample: what the model needs both ways (`graph/cost.py`), and the forward that
    activation checkpointing computes once more."""

    forward: int
    backward: int
    recomputed: int = 0

    @property
    def model(self) -> int:
        """What utilisation counts: Chowdhery et al., PaLM, 2022, appendix B."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """What is really computed."""
        return self.model + self.recomputed


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one kind of device at the moment of a step at which it holds the most: what the optimizer's step begins
    with and keeps, what fsdp gathers, what waits for the backward or is worked on, what the loss makes, the batch.
    `is_traced`: counted in the engine's own step on tensors without memory (`runtime/footprint`); else derived from
    such a count of the same model on one device."""

    name: str
    parameters: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    loss: int = 0
    data: int = 0
    is_traced: bool = False

    @property
    def total(self) -> int:
        held = self.parameters + self.gradients + self.optimizer
        return held + self.gathered + self.activations + self.loss + self.data


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What each device sends in a step, inside its node or over the network; `seconds` None: no figure of the link."""

    what: str
    link: Literal["node", "network"]
    bytes_sent: int
    num_calls: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class EstimatePlan:
    """What the layout should need and take on a kind of hardware, for the device that needs or takes the most. Seconds
    are of one optimizer step, None where the hardware has no figures; `exposed_s` is waiting for others that nothing
    hides. It decides nothing at run time."""

    hardware: str
    memory_bytes: int
    device_memory_bytes: int | None
    step_s: float | None
    compute_s: float | None
    exposed_s: float | None
    bubble_s: float | None
    update_s: float | None
    mfu: float | None
    hfu: float | None
    transfers: tuple[TransferPlan, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """A way to run that `parallelism: auto` looked at. Of pipelines that differ in schedule and microbatches only, the
    best one stands for all."""

    parallelism: str
    memory_bytes: int | None
    step_s: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """Why `parallelism: auto` became what the layout is."""

    reason: str
    candidates: tuple[CandidatePlan, ...]
    num_considered: int
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """`batch_graph` holds the nodes computed from fields alone: every rank evaluates it on its rows, without
    gradients, and its outputs join the fields in the batch; `graph` takes its inputs from that batch by name, and its
    outputs are the edges that the objective reads. `recipe` holds the texts of the recipe's files as they were typed.
    float32 in either stands for what the run computes in: float64 with fp64. `draws` are the paths of the nodes that
    draw random numbers, whose bits hold on one layout only. `memory` has a row for each kind of device, none where
    nobody asked for a trace. `estimate` is there where the hardware is known, `choice`
    where the recipe left the mode to the planner. `settings` are the values of the resolved recipe by their dotted
    paths (`plan/settings.py`): what runs are told apart by; they decide nothing.

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
    flops: FlopsPlan = FlopsPlan(0, 0)
    memory: tuple[MemoryPlan, ...] = ()
    estimate: EstimatePlan | None = None
    choice: ChoicePlan | None = None
    settings: dict[str, object] = field(default_factory=dict)
    fingerprint: str = ""
    identity: str = ""
