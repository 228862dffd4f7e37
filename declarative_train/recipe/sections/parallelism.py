"""`parallelism`: the one word that says how the ranks share the work. Each mode has its own keys.

A `Parallelism` is a mode that can run; `Auto` becomes one of them when the recipe is compiled.
"""

from typing import Annotated, Literal

from pydantic import Field

from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count


class Single(Section):
    """One process, one device."""

    mode: Literal["single"] = "single"
    """How the ranks share the work."""


class Dp(Section):
    """One process, several devices: each batch is scattered, the outputs are gathered."""

    mode: Literal["dp"] = "dp"
    """How the ranks share the work."""


class Ddp(Section):
    """A rank per device, each with the whole model; gradients are averaged."""

    mode: Literal["ddp"] = "ddp"
    """How the ranks share the work."""


class Fsdp(Section):
    """A rank per device, each with a shard of every parameter, gradient and optimizer state."""

    mode: Literal["fsdp"] = "fsdp"
    """How the ranks share the work."""
    replicate: Count = 1
    """Hybrid sharding: this many groups of ranks hold a whole sharded model each."""


class DataParallel(Section):
    """Several pipelines side by side, each with its share of the batch."""

    mode: Literal["ddp", "fsdp"] = "ddp"
    """Whether each pipeline holds its stages whole (ddp) or sharded (fsdp)."""
    size: Count
    """The number of pipelines."""


Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"]


class Pipeline(Section):
    """The model is cut into stages, and microbatches pass through them."""

    mode: Literal["pipeline"] = "pipeline"
    """How the ranks share the work."""
    stages: Annotated[int, Field(ge=2)]
    """Chunks that the model is cut into; GPUs / data_parallel.size ranks hold them, one or more each."""
    schedule: Schedule = "1f1b"
    """In which order each rank works on its microbatches."""
    microbatches: Count
    """Parts in which the batch of one pipeline passes through the stages, per accumulation step."""
    cut_before: tuple[str, ...] | Literal["auto"] = "auto"
    """The node that opens each stage but the first, such as [layers.4, layers.8]; auto: cuts of equal cost."""
    data_parallel: DataParallel | None = None
    """Several pipelines side by side; left out: one."""


class Auto(Section):
    """The planner takes the mode that it expects to be fastest of those that fit, and `dtrain plan` shows why."""

    mode: Literal["auto"] = "auto"
    """How the ranks share the work."""


Parallelism = Single | Dp | Ddp | Fsdp | Pipeline

MODES: dict[str, type[Single | Dp | Ddp | Fsdp | Pipeline | Auto]] = {
    "auto": Auto,
    "ddp": Ddp,
    "dp": Dp,
    "fsdp": Fsdp,
    "pipeline": Pipeline,
    "single": Single,
}
