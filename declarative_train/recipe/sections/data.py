"""Section `data`: the source of rows, the fields (named tensors of a sample, made from columns) and the sets (parts of
the rows, such as `validation`).
"""

from typing import Annotated, Literal

from pydantic import Field as Bounds

from declarative_train.components.data import Dataset, Field
from declarative_train.components.split import Split
from declarative_train.components.transform import Transform
from declarative_train.recipe.sections.section import Section

Rows = Annotated[int, Bounds(ge=1, le=10**15)]


class Window(Section):
    """Windows: each sample is a slice of consecutive rows."""

    length: Rows
    """Rows of one sample."""
    stride: Rows | None = None
    """Rows from the start of one window to the start of the next; left out: `length`, so that none overlap."""
    by: str | None = None
    """A column whose values a window never crosses, such as a meter or a document."""
    sort: str | None = None
    """A column that sorts the rows before they are divided into windows."""


class DataSection(Section):
    """The source of rows, the fields made from its columns, and the sets of its rows."""

    source: Dataset
    """The source of the rows, by its `type`."""
    fields: dict[str, Field]
    """The named tensors of a sample; the default is `type: tensor`."""
    transforms: tuple[Transform, ...] = ()
    """Changes of pictures, applied in this order when a sample is read, after the picture was decoded, converted to its
    `mode` and resized to its `size`.
    """
    split: dict[str, Split] = {}
    """Sets by name, such as `{validation: 0.2}`; the remaining rows are the training set. A number is the short form of
    a random fraction.
    """
    window: Window | None = None
    """Samples are slices of consecutive rows; left out: one row each."""
    shuffle: bool = True
    """Whether the training set has another order in each epoch; other sets keep the order of the file."""
    shuffle_window: Rows | None = None
    """For files that are read in blocks (row groups, record batches): number of samples in memory, over all ranks, that
    are shuffled together. Left out: all samples if the set fits in memory (up to 2 GiB), else 512 MiB of them.
    """
    shuffle_streams: Annotated[int, Bounds(ge=1, le=1 << 16)] | None = None
    """For files that are read in blocks: number of streams in which they are read, each by as few ranks as possible.
    The order of the samples depends on this number. Left out: up to 32, as many as the blocks in `shuffle_window`
    allow.
    """
    workers: Annotated[int, Bounds(ge=0)] = 0
    """Number of loader processes per rank."""
    on_bad_row: Literal["error", "skip"] = "error"
    """What happens with a row that cannot be parsed, lacks a value, or has a picture that cannot be decoded: `error`
    ends the run; `skip` leaves the row out, counts it, and lists it in `skipped_rows.jsonl`.
    """
    last_batch: Literal["keep", "drop"] = "keep"
    """Whether the last, partial batch of an epoch is used."""
