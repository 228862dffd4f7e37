"""What the ranks must know of the data, as data: part of the plan.

Component mappings (`source`, a field, a split) hold the fields of the component's model, `type` included; paths in
them are absolute (or URLs), resolved by the recipe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from declarative_train.core.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file that the plan rests on. `sha256` covers all of it, or, with `modified_ns`, its size and a sample; then the
    date tells, on this machine, whether the rest may have changed (0: it has none that we know)."""

    path: str
    size_bytes: int
    sha256: str
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One named tensor of a sample. `component` is the field's model; `statistics` are those of the training rows
    (`subtract`, `divide`, `fill`, `vocabulary`, ... as the field type needs), computed when the recipe is compiled, or
    those of a run whose weights the model starts from: `statistics_from` says which. `columns` are those that its names
    and globs stand for, in order."""

    name: str
    component: dict[str, object]
    tensor: TensorSpec
    statistics: dict[str, object] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    statistics_from: str = ""


@dataclass(frozen=True, slots=True)
class WindowSpec:
    length: int
    stride: int
    by: str | None = None
    sort: str | None = None


@dataclass(frozen=True, slots=True)
class RollSpec:
    """How the training set is shuffled where it is read in blocks (data/block_shuffle.py): in so many streams, each
    mixed within windows of so many blocks."""

    streams: int
    window: int


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """A source of a mixture: its share of the positions, in whole parts, and its samples in the training set. `roll`:
    as that of `DataSpec`."""

    name: str
    share: int
    num_samples: int
    roll: RollSpec | None = None


@dataclass(frozen=True, slots=True)
class SetSpec:
    """A named set of samples. `source` is None for a cut of the main source; `split` says which rows it takes.
    `held_bytes` of one that is held in memory, else 0."""

    name: str
    num_samples: int
    source: dict[str, object] | None = None
    split: dict[str, object] | None = None
    held_bytes: int = 0


def may_lie_on_gpu(held_bytes: int, free_bytes: int, steps_bytes: int) -> bool:
    """Of a GPU a held set takes what the steps leave, and an eighth, at most, of what is free before them."""
    return held_bytes <= min(free_bytes // 8, free_bytes - steps_bytes)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """`sets` holds `training` first, then the others in the order of the recipe. `roll`: None where any sample can
    stand anywhere in the epoch. `mix`: of a mixture, its sources in order (data/mixing.py)."""

    source: dict[str, object]
    fields: tuple[FieldSpec, ...]
    sets: tuple[SetSpec, ...]
    seed: int
    shuffle: bool = True
    roll: RollSpec | None = None
    workers: int = 0
    last_batch: str = "keep"  # keep | drop
    window: WindowSpec | None = None
    files: tuple[FileRecord, ...] = ()
    transforms: tuple[dict[str, object], ...] = ()
    mix: tuple[MemberSpec, ...] = ()
    on_bad_row: str = "error"  # error | skip

    @property
    def rolls(self) -> bool:
        """All of the training set, or a source of it."""
        return self.roll is not None or any(member.roll is not None for member in self.mix)

    def set(self, name: str) -> SetSpec:
        return next(item for item in self.sets if item.name == name)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """The one batch number and what it divides into:
    global_batch_size = data_parallel_size x accumulation x microbatch_size x num_microbatches.

    A global batch is a run of consecutive positions of the epoch's order. Position p of it belongs to one slot,
    the same for every layout of the same sizes:

        chunk = p // (data_parallel_size * microbatch_size)     in 0 .. accumulation * num_microbatches - 1
        rank  = p // microbatch_size % data_parallel_size       data-parallel rank
        row   = p % microbatch_size

    so that the samples that travel together through all ranks are consecutive. A last, partial batch fills the first
    slots; a rank left without a row in a chunk takes one repeat of a real row with weight 0. A pipeline pads every
    chunk to microbatch_size in the same way.
    """

    global_batch_size: int
    data_parallel_size: int
    accumulation: int
    microbatch_size: int
    num_microbatches: int  # of the pipeline; 1 elsewhere
    steps_per_epoch: int
    pad_to_full: bool = False  # every chunk has microbatch_size rows (pipeline, compile)


class DataError(Exception):
    """One message for the user; a run that meets it fails (exit 3)."""
