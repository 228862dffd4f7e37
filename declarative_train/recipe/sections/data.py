"""Section `data`: the source gives rows, fields are the named tensors of a sample, sets are parts of the rows."""

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
    """Changes of pictures, in order, made when a sample is read: after decoding, `mode` and `size`."""
    split: dict[str, Split] = {}
    """Sets by name; the remaining rows are the training set. A number is the short form of a random fraction."""
    window: Window | None = None
    """Samples are slices of consecutive rows; left out: one row each."""
    shuffle: bool = True
    """Whether the training set has another order in each epoch; other sets keep the order of the file."""
    shuffle_window: Rows | None = None
    """Number of samples in memory that are shuffled together, over all ranks, if files are read in blocks (row groups,
    record batches). Left out: all samples if the set fits in memory (up to 2 GiB), else 512 MiB of them.
    """
    shuffle_streams: Annotated[int, Bounds(ge=1, le=1 << 16)] | None = None
    """Number of streams in which such a set is read, each by as few ranks as possible; the order depends on it. Left
    out: up to 32, as many as the blocks in `shuffle_window` allow.
    """
    workers: Annotated[int, Bounds(ge=0)] = 0
    """Loader processes per rank."""
    on_bad_row: Literal["error", "skip"] = "error"
    """For a row that cannot be parsed, lacks a value, or has a picture that cannot be decoded: `error` ends the run;
    `skip` leaves it out, and the run counts and lists it in `skipped_rows.jsonl`.
    """
    last_batch: Literal["keep", "drop"] = "keep"
    """Whether the last, partial batch of an epoch is used."""
