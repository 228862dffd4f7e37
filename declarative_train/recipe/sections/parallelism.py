"""`parallelism`: the one word that says how the ranks share the work. Each mode has its own keys.

A `Parallelism` is a mode that can run; `Auto` becomes one of them when the recipe is compiled. Which mesh a mode is
stands here and nowhere else: what comes after asks for axes, not for the word.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count
from declarative_train.terms.mesh import Mesh, MeshAxis

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"]


class Single(Section):
    """One process, one device."""

    mode: Literal["single"] = "single"
    """How the ranks share the work."""
    in_one_process: ClassVar[bool] = True
    scatters: ClassVar[bool] = False
    microbatches: ClassVar[int] = 1
    reshard: ClassVar[None] = None

    def data_parallel_size(self, num_gpus: int) -> int:
        return 1

    def mesh(self, num_gpus: int) -> Mesh | None:
        return ()


class Dp(Section):
    """One process, several devices: each batch is scattered, the outputs are gathered."""

    mode: Literal["dp"] = "dp"
    """How the ranks share the work."""
    in_one_process: ClassVar[bool] = True
    scatters: ClassVar[bool] = True
    microbatches: ClassVar[int] = 1
    reshard: ClassVar[None] = None

    def data_parallel_size(self, num_gpus: int) -> int:
        return num_gpus

    def mesh(self, num_gpus: int) -> Mesh | None:
        """Its devices are not ranks: a plan counts them as copies of the model."""
        return ()


class Ddp(Section):
    """A rank per device, each with the whole model; gradients are averaged."""

    mode: Literal["ddp"] = "ddp"
    """How the ranks share the work."""
    in_one_process: ClassVar[bool] = False
    scatters: ClassVar[bool] = False
    microbatches: ClassVar[int] = 1
    reshard: ClassVar[None] = None

    def data_parallel_size(self, num_gpus: int) -> int:
        return num_gpus

    def mesh(self, num_gpus: int) -> Mesh | None:
        return (MeshAxis("replicate", num_gpus),)


class Fsdp(Section):
    """A rank per device, each with a shard of every parameter, gradient and optimizer state."""

    mode: Literal["fsdp"] = "fsdp"
    """How the ranks share the work."""
    replicate: Count = 1
    """Hybrid sharding: this many groups of ranks hold a whole sharded model each."""
    reshard: bool | Annotated[int, Field(ge=2)] = True
    """Between forward and backward: true frees the parameters that were gathered, false keeps them, which saves a
    gather and takes their memory, a number spreads them over so many neighbours, such as the GPUs of a node."""
    in_one_process: ClassVar[bool] = False
    scatters: ClassVar[bool] = False
    microbatches: ClassVar[int] = 1

    def data_parallel_size(self, num_gpus: int) -> int:
        return num_gpus

    def mesh(self, num_gpus: int) -> Mesh | None:
        """None when the replicas do not divide. Shards lie on neighbours: their traffic is the heavier one."""
        shards = _share(num_gpus, self.replicate)
        if shards is None:
            return None
        whole = (MeshAxis("shard", shards),)
        return whole if self.replicate == 1 else (MeshAxis("replicate", self.replicate), *whole)


class DataParallel(Section):
    """Several pipelines side by side, each with its share of the batch."""

    mode: Literal["ddp", "fsdp"] = "ddp"
    """Whether each pipeline holds its stages whole (ddp) or sharded (fsdp)."""
    size: Count
    """The number of pipelines."""


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
    in_one_process: ClassVar[bool] = False
    scatters: ClassVar[bool] = False

    def data_parallel_size(self, num_gpus: int) -> int:
        return 1 if self.data_parallel is None else self.data_parallel.size

    def mesh(self, num_gpus: int) -> Mesh | None:
        """None when the GPUs do not divide over the pipelines. What travels between stages is little beside what
        data-parallel neighbours exchange, so the pipeline is the outer axis."""
        ranks = _share(num_gpus, self.data_parallel_size(num_gpus))
        if ranks is None:
            return None
        whole = (MeshAxis("pipeline", ranks),)
        if self.data_parallel is None:
            return whole
        return (*whole, MeshAxis("shard" if self.is_sharded else "replicate", self.data_parallel.size))

    @property
    def reshard(self) -> bool | None:
        """Stages that are sharded stay gathered for a step."""
        return False if self.is_sharded else None

    @property
    def is_sharded(self) -> bool:
        return self.data_parallel is not None and self.data_parallel.mode == "fsdp"


class Auto(Section):
    """The planner takes the mode that it expects to be fastest of those that fit, and `dtrain plan` shows why."""

    mode: Literal["auto"] = "auto"
    """How the ranks share the work."""

    def mesh(self, num_gpus: int) -> Mesh | None:
        """Not known yet."""
        return None


Parallelism = Single | Dp | Ddp | Fsdp | Pipeline
DEFAULT = Single

MODES: dict[str, type[Single | Dp | Ddp | Fsdp | Pipeline | Auto]] = {
    "auto": Auto,
    "ddp": Ddp,
    "dp": Dp,
    "fsdp": Fsdp,
    "pipeline": Pipeline,
    "single": Single,
}


def mode_on(mode: str, num_gpus: int) -> str:
    """The mode that takes so many GPUs: ddp for one of a single device, single for one of several on one GPU."""
    if num_gpus > 1:
        return "ddp" if mode == "single" else mode
    return mode if mode == "auto" else "single"


def _share(number: int, parts: int) -> int | None:
    size, rest = divmod(number, parts)
    return None if rest or not size else size
