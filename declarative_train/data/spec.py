"""Data part of the plan: everything that ranks need to know about the data, as plain data.

Components (`source`, fields, splits) are mappings with the keys of the recipe, `type` included; paths in them are
absolute (or URLs).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from declarative_train.core.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class FileRecord:
    """Record of a file or folder on which the plan depends, by which a later change is noticed.

    `sha256`       hash of the content; of a large file its size and some parts; of a folder its files' names and sizes
    `modified_ns`  date of the last change, comparable on one machine only; 0: unknown; None: the hash covers everything
    """

    path: str
    size_bytes: int
    sha256: str
    modified_ns: int | None = None


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Field: one named tensor of a sample.

    component        keys of the field in the recipe
    columns          columns that the field reads, in order
    statistics       values for the conversion (`subtract`, `divide`, `fill`, `vocabulary`, ...), from the training rows
    statistics_from  run whose statistics are used, because the model starts from its weights; "": none
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
class BlockShuffleSpec:
    """Block shuffle of a set (data/shuffle.py). `streams`: number of equal parts into which the samples of an epoch
    are divided. `window`: number of blocks of a stream that are shuffled together."""

    streams: int
    window: int


@dataclass(frozen=True, slots=True)
class MixtureSourceSpec:
    """Source of a mixture. `share`: an integer; the source gives share / (sum of all shares) of the samples. `roll`:
    block shuffle of the source; None: a full shuffle."""

    name: str
    share: int
    num_samples: int
    roll: BlockShuffleSpec | None = None


@dataclass(frozen=True, slots=True)
class SetSpec:
    """Named set of samples.

    `source`: source that only this set reads; None: the set has rows of the main source. `split`: the rule of the
    recipe that selects these rows; None for `training`, which gets the rest, and for a set with a `source`.
    `held_bytes`: size of the set if it is kept in memory, else 0. `buckets`: number of samples in each length bucket,
    from the shortest.
    """

    name: str
    num_samples: int
    source: dict[str, object] | None = None
    split: dict[str, object] | None = None
    held_bytes: int = 0
    buckets: tuple[int, ...] = ()


def may_lie_on_gpu(held_bytes: int, free_bytes: int, steps_bytes: int) -> bool:
    """Return whether a training set of `held_bytes` may be kept on a GPU. It may take at most an eighth of the free
    memory, and must leave `steps_bytes` for a training step."""
    return held_bytes <= min(free_bytes // 8, free_bytes - steps_bytes)


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Data of a run. `sets`: `training`, then the others in the order of the recipe. `roll`: settings of the block
    shuffle of the training set; None: it is fully shuffled. `mix`: the sources of a mixture in order (data/mixture.py).
    """

    source: dict[str, object]
    fields: tuple[FieldSpec, ...]
    sets: tuple[SetSpec, ...]
    seed: int
    shuffle: bool = True
    roll: BlockShuffleSpec | None = None
    workers: int = 0
    last_batch: str = "keep"  # keep | drop
    window: WindowSpec | None = None
    files: tuple[FileRecord, ...] = ()
    transforms: tuple[dict[str, object], ...] = ()
    mix: tuple[MixtureSourceSpec, ...] = ()
    on_bad_row: str = "error"  # error | skip

    @property
    def is_block_shuffled(self) -> bool:
        """True if the training set, or a source of its mixture, is block-shuffled."""
        return self.roll is not None or any(member.roll is not None for member in self.mix)

    def set(self, name: str) -> SetSpec:
        return next(item for item in self.sets if item.name == name)


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """Batch sizes: global_batch_size = data_parallel_size x accumulation x microbatch_size x num_microbatches.

    Position p of a global batch (consecutive positions of the epoch) belongs to:

        chunk = p // (data_parallel_size * microbatch_size)   in 0 .. accumulation * num_microbatches - 1
        rank  = p // microbatch_size % data_parallel_size     data-parallel rank
        row   = p % microbatch_size

    So the samples that all ranks process at the same time (a chunk) are consecutive. In the last, smaller batch of an
    epoch, a rank without a sample gets one row of padding: a repeated sample with weight 0. With `pad_to_full` each
    chunk of each rank is padded to microbatch_size rows.
    """

    global_batch_size: int
    data_parallel_size: int
    accumulation: int
    microbatch_size: int
    num_microbatches: int  # of a pipeline schedule; 1 without a pipeline
    steps_per_epoch: int
    pad_to_full: bool = False  # every chunk has microbatch_size rows (pipeline, compile)


class DataError(Exception):
    """Error: the data cannot be read or differ from the plan. The message is for the user; the run ends with exit code
    3."""
