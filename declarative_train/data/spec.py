"""Data part of the plan: everything that ranks need to know about the data, as plain data.

Components (`source`, fields, splits) are mappings with the keys of the recipe, `type` included; paths in them are
absolute (or URLs).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from declarative_train.core.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Record of a file on which the plan depends, by which changes of the file are noticed. If `modified_ns` is None,
    `sha256` is a hash of the whole content. Otherwise `sha256` is a hash of the size and of samples of the content (for
    a folder, of the names and sizes of its files), and `modified_ns` is a date, which shows on this machine whether the
    rest may have changed; 0: the date is unknown."""

    path: str
    size_bytes: int
    sha256: str
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Field: one named tensor of a sample.

    `component`: keys of the field in the recipe. `statistics`: numbers that the type of the field needs (`subtract`,
    `divide`, `fill`, `vocabulary`, ...). They are computed from the training rows when the recipe is compiled, or
    taken from the run whose weights the model starts from; then `statistics_from` names that run. `columns`: names of
    the columns that the field reads, in order.
    """

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
    """Block shuffle of the training set (data/shuffle.py). `streams`: number of streams. `window`: number of blocks
    per window."""

    streams: int
    window: int


@dataclass(frozen=True, slots=True)
class MemberSpec:
    """Source of a mixture. `share`: an integer; the source gives share / (sum of all shares) of the samples. `roll`:
    the block shuffle of the source; None: a full shuffle."""

    name: str
    share: int
    num_samples: int
    roll: RollSpec | None = None


@dataclass(frozen=True, slots=True)
class SetSpec:
    """Named set of samples. `source`: the set's own source; None: its rows come from the main source, and `split` says
    which rows. `held_bytes`: size of the set if it is kept in memory, else 0. `buckets`: the number of samples of each
    level (data/length_buckets.py)."""

    name: str
    num_samples: int
    source: dict[str, object] | None = None
    split: dict[str, object] | None = None
    held_bytes: int = 0
    buckets: tuple[int, ...] = ()


def may_lie_on_gpu(held_bytes: int, free_bytes: int, steps_bytes: int) -> bool:
    """Return whether a set of `held_bytes` is kept on a GPU. The set must fit into the memory that steps leave free
    (`free_bytes` minus `steps_bytes`), and into an eighth of `free_bytes`."""
    return held_bytes <= min(free_bytes // 8, free_bytes - steps_bytes)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Data of a run. `sets`: `training`, then the others in the order of the recipe. `roll`: block shuffle of the
    training set; None for a full shuffle. `mix`: the sources of a mixture in order (data/mixture.py)."""

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
        """True if the training set, or a source of its mixture, is block-shuffled."""
        return self.roll is not None or any(member.roll is not None for member in self.mix)

    def set(self, name: str) -> SetSpec:
        return next(item for item in self.sets if item.name == name)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Batch sizes: global_batch_size = data_parallel_size x accumulation x microbatch_size x num_microbatches.

    A global batch has consecutive positions of the epoch. Position p, counted from the start of the batch, belongs to:

        chunk = p // (data_parallel_size * microbatch_size)   in 0 .. accumulation * num_microbatches - 1
        rank  = p // microbatch_size % data_parallel_size     data-parallel rank
        row   = p % microbatch_size

    So the samples that all ranks process at the same time (a chunk) are consecutive. The assignment depends only on
    the four sizes. A last, partial batch fills the first slots. A rank without a row in a chunk gets one repeat of a
    real row, with weight 0. A pipeline pads every chunk to microbatch_size in the same way.
    """

    global_batch_size: int
    data_parallel_size: int
    accumulation: int
    microbatch_size: int
    num_microbatches: int  # of the pipeline; 1 elsewhere
    steps_per_epoch: int
    pad_to_full: bool = False  # every chunk has microbatch_size rows (pipeline, compile)


class DataError(Exception):
    """Error: the data cannot be read or differ from the plan. The message is for the user; the run ends with exit code
    3."""
