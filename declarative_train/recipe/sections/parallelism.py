"""Section `parallelism`: how the ranks share the work, as a product of axes. A word such as `ddp` is short for a common
product.

The planner replaces `Auto` by `Axes` or `Dp`. Only this module turns axes into a mesh; later code reads the mesh.
"""

from math import prod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.core.mesh import DATA_AXES, Axis, Mesh, MeshAxis, size_of
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.training import Count

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "dualpipev"]
Size = Count | Literal["all"]
Mode = Literal["single", "ddp", "fsdp", "pipeline", "expert", "context", "tensor"]


class DataAxes(Section):
    """Axes whose ranks process different rows of a batch. A batch is divided into as many parts as the product of their
    sizes. The size `all` means all ranks that the other axes do not use.
    """

    replicate: Size | None = None
    """Number of copies of the model or, with `shard`, of all shards together. Gradients are averaged over the copies.
    """
    shard: Size | None = None
    """Number of ranks that share every parameter, gradient and optimizer state: each holds a part of each."""
    reshard: bool | Annotated[int, Field(ge=2)] | None = None
    """What happens to the gathered parameters between forward and backward. true (the default): they are freed. false:
    they are kept, which saves a gather but takes memory; a pipeline always does this. A number: they are divided over
    so many neighbouring ranks, such as the GPUs of a node.
    """

    @property
    def sizes(self) -> dict[Axis, int | Literal["all"]]:
        """Sizes of the data axes (`replicate`, `shard`) that are set, as {axis: size}."""
        both: tuple[tuple[Axis, Size | None], ...] = (("replicate", self.replicate), ("shard", self.shard))
        return {name: size for name, size in both if size is not None}


class PipelineAxis(Section):
    """A pipeline: the model is divided into stages, and microbatches pass through them. The pipeline uses all ranks
    that the other axes do not use; each rank has one or more stages.
    """

    stages: Annotated[int, Field(ge=2)]
    """Number of stages of the model."""
    schedule: Schedule = "1f1b"
    """Order in which a rank computes the forwards and backwards of its microbatches."""
    microbatches: Count
    """Number of microbatches into which the rows of one pipeline and one accumulation step are divided."""
    cut_before: tuple[str, ...] | Literal["auto"] = "auto"
    """The first node of each stage except the first, such as [layers.4, layers.8]; auto: stages of equal cost."""

    @property
    def most_ranks(self) -> int:
        """Largest possible number of ranks in the pipeline. With this number, each rank has the smallest number of
        stages that the schedule allows."""
        return max(1, self.stages // PIPELINE_SCHEDULES[self.schedule].stages_per_rank[0])


class TensorAxis(Section):
    """Ranks that share each layer: they read the same rows, and each computes a part of the features, heads or
    vocabulary. They communicate in every layer, so they should be GPUs of one node."""

    size: Annotated[int, Field(ge=2)]
    """Number of ranks."""
    sequence: bool = False
    """Also divide the tokens of each sequence over these ranks, between the divided layers. This saves memory of
    activations.
    """


class ContextAxis(Section):
    """Ranks that share the positions of each sequence: they read the same rows, and each computes some positions of
    them. They exchange keys and values in every attention layer."""

    size: Annotated[int, Field(ge=2)]
    """Number of ranks; the length of the sequences must be a multiple of twice this number."""
    keys: Literal["gathered", "ring"] = "gathered"
    """How attention gets the keys and values of other ranks. `gathered`: all at once before the attention of a layer,
    which takes the memory of all positions for one layer. `ring`: those of one rank at a time, which is slower, because
    torch's fused kernels are not used. Layers with dropout use `gathered` in any case.
    """


class Axes(Section):
    """Axes of parallelism. Each device has one rank, which has a position on every axis. A recipe without axes runs one
    process on one device."""

    data: DataAxes | None = None
    """The axes whose ranks process different rows of a batch."""
    pipeline: PipelineAxis | None = None
    """The axis whose ranks hold different stages of the model."""
    context: ContextAxis | None = None
    """The axis whose ranks share the positions of each sequence: a number of ranks."""
    tensor: TensorAxis | None = None
    """The axis whose ranks share each layer: a number of ranks, or `{size: 8, sequence: true}`."""
    expert: Annotated[int, Field(ge=2)] | None = None
    """The axis whose ranks share the experts of each layer `moe`, and of a model of transformers: a number of ranks.
    The ranks read different rows, and send each row to the ranks that have the experts chosen for it.
    """
    scatters: ClassVar[bool] = False

    @property
    def mode(self) -> Mode:
        """Name of the main axis: `pipeline`, else `fsdp` or `ddp` if there are data axes, else `expert`, `tensor` or
        `context`. `single` if there are no axes.
        """
        if self.pipeline is not None:
            return "pipeline"
        if self.data is None or not self.data.sizes:
            if self.expert is not None:
                return "expert"
            return "tensor" if self.tensor is not None else "single" if self.context is None else "context"
        return "ddp" if self.data.shard is None else "fsdp"

    @property
    def word(self) -> str | None:
        """Word that a recipe can write as `parallelism` instead of these axes, such as `fsdp`; None if there is
        none."""
        return self.mode if self == of_word(self.mode) else None

    def with_defaults(self) -> Self:
        """Return a copy in which `data.reshard` has a value: that of the recipe, or the default. Return the axes
        unchanged if parameters are not sharded or there is a pipeline, because the key then has no effect."""
        if self.data is None or self.reshard is None or self.pipeline is not None:
            return self
        return self.model_copy(update={"data": self.data.model_copy(update={"reshard": self.reshard})})

    @property
    def in_one_process(self) -> bool:
        return self.mode == "single"

    @property
    def is_sharded(self) -> bool:
        return self.data is not None and self.data.shard is not None

    @property
    def microbatches(self) -> int:
        return 1 if self.pipeline is None else self.pipeline.microbatches

    @property
    def reshard(self) -> bool | int | None:
        """Return whether ranks free the gathered parameters after the forward pass: the key `reshard`, by default True.
        A number means the same as in torch's `fully_shard`. None if parameters are not sharded. False in a pipeline,
        whose stages keep the gathered parameters for a whole step."""
        if self.data is None or self.data.shard is None:
            return None
        if self.pipeline is not None:
            return False
        return True if self.data.reshard is None else self.data.reshard

    @property
    def open_axes(self) -> tuple[Axis, ...]:
        """Names of the axes of size `all`, which use all ranks that the other axes do not use."""
        return () if self.data is None else tuple(name for name, size in self.data.sizes.items() if size == "all")

    @property
    def sizes(self) -> dict[Axis, int | Literal["all"]]:
        """{axis: size} of the axes that are set, except for the pipeline."""
        own: dict[Axis, int | Literal["all"]] = {} if self.data is None else self.data.sizes
        own = own if self.expert is None else own | {"expert": self.expert}
        inner: tuple[tuple[Axis, ContextAxis | TensorAxis | None], ...]
        inner = (("context", self.context), ("tensor", self.tensor))
        return own | {name: axis.size for name, axis in inner if axis is not None}

    @property
    def _num_inner(self) -> int:
        """Number of ranks that process the same rows of a batch: size of the axis `context` x size of `tensor`."""
        return prod(axis.size for axis in (self.context, self.tensor) if axis is not None)

    def multiply_sizes(self) -> int:
        """Return the product of the sizes of all axes except the pipeline and axes of size `all`."""
        return prod(size for size in self.sizes.values() if size != "all")

    def data_parallel_size(self, num_gpus: int) -> int:
        mesh = self.mesh(num_gpus)
        if mesh is not None:
            return size_of(mesh, *DATA_AXES)
        return num_gpus if self.pipeline is None else self.multiply_sizes() // self._num_inner

    def mesh(self, num_gpus: int) -> Mesh | None:
        """Return the mesh for a number of GPUs; None if the sizes of the axes do not fit. Its axes are in the order of
        increasing communication: pipeline, replicate, shard, expert, context, tensor.

        Two axes are left out if they have only one rank: an axis of size `all`, if the mesh has an axis other than
        `replicate` and `shard`; and `replicate`, if the mesh has `shard`.
        """
        if self.mode == "single":
            return ()
        in_pipeline = self.pipeline is not None
        rest = _share(num_gpus, self.multiply_sizes())
        if rest is None or len(self.open_axes) > 1:
            return None
        num_stage_ranks = 1
        if self.pipeline is not None:
            num_stage_ranks = min(rest, self.pipeline.most_ranks) if self.open_axes else rest
            rest = _share(rest, num_stage_ranks)
        if rest is None or (not self.open_axes and not in_pipeline and rest > 1):
            return None
        found = [MeshAxis("pipeline", num_stage_ranks)] if in_pipeline else []
        for name, size in self.sizes.items():
            number = rest if size == "all" else size
            has_inner = self.expert is not None or self._num_inner > 1
            is_rest = size == "all" and (in_pipeline or has_inner)
            if number > 1 or not (is_rest or (name == "replicate" and self.is_sharded)):
                found.append(MeshAxis(name, number))
        return tuple(found)


class Dp(Section):
    """Single process with a copy of the model on each of several devices: each batch is scattered to them, and the
    outputs are gathered. It has no mesh.
    """

    mode: ClassVar[Literal["dp"]] = "dp"
    word: ClassVar[str] = "dp"
    data: ClassVar[None] = None
    pipeline: ClassVar[None] = None
    in_one_process: ClassVar[bool] = True
    is_sharded: ClassVar[bool] = False
    scatters: ClassVar[bool] = True
    microbatches: ClassVar[int] = 1
    reshard: ClassVar[None] = None

    def data_parallel_size(self, num_gpus: int) -> int:
        return num_gpus

    def mesh(self, num_gpus: int) -> Mesh | None:
        return ()


class Auto(Section):
    """Choice of the axes by the planner. It chooses the combination of axes that is fastest by its estimates, among
    those that fit into memory. `dtrain plan` shows the reason."""

    mode: ClassVar[Literal["auto"]] = "auto"
    word: ClassVar[str] = "auto"

    def mesh(self, num_gpus: int) -> Mesh | None:
        """Return None, because the mesh is not known yet."""
        return None


Parallelism = Axes | Dp
DEFAULT = Axes

WORDS = ("auto", "ddp", "dp", "fsdp", "pipeline", "single")
AXES_OF_WORDS: dict[str, dict[str, dict[str, str]]] = {  # without `auto` and `dp`, which have no axes
    "ddp": {"data": {"replicate": "all"}},
    "fsdp": {"data": {"shard": "all"}},
    "pipeline": {"pipeline": {}},  # `stages` and `microbatches` have no default
    "single": {},
}


def of_word(word: str) -> Axes | Dp | Auto | None:
    """Return the settings that a single word under `parallelism`, such as `fsdp`, stands for. Return None for
    `pipeline`, `expert`, `context` and `tensor`, which also need the size of the axis."""
    if word in ("pipeline", "expert", "context", "tensor"):
        return None
    if word in AXES_OF_WORDS:
        return Axes.model_validate({key: DataAxes.model_validate(axes) for key, axes in AXES_OF_WORDS[word].items()})
    return Auto() if word == "auto" else Dp()


def mode_on(mode: str, num_gpus: int) -> str:
    """Return the mode to use with `num_gpus` GPUs. With several, `single` becomes `ddp`; with one, every mode becomes
    `single`; `auto` does not change.
    """
    if num_gpus > 1:
        return "ddp" if mode == "single" else mode
    return mode if mode == "auto" else "single"


def _share(number: int, parts: int) -> int | None:
    size, rest = divmod(number, parts)
    return None if rest or not size else size
