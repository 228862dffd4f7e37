"""`data`: a source is a table; fields are the named tensors of a sample; sets are cut from its rows."""

from typing import Annotated, Literal

from pydantic import Field as Bounds

from declarative_train.components.data import Dataset, Field, Split, Transform
from declarative_train.recipe.sections.section import Section

Rows = Annotated[int, Bounds(ge=1, le=10**15)]


class Window(Section):
    """A sample is a slice of consecutive rows."""

    length: Rows
    """Rows of one sample."""
    stride: Rows | None = None
    """Rows from the start of one window to the start of the next; left out: `length`, so that none overlap."""
    by: str | None = None
    """A column whose values no window crosses: a meter, a document."""
    sort: str | None = None
    """A column to sort the rows by before they are cut."""


class DataSection(Section):
    """A source of rows, the fields made of its columns, and the sets cut from its rows."""

    source: Dataset
    """Where the rows come from, by its `type`."""
    fields: dict[str, Field]
    """The named tensors of a sample; `type: tensor` where none is given."""
    transforms: tuple[Transform, ...] = ()
    """Changes of pictures, in order, when a sample is asked for: after decoding, `mode` and `size`."""
    split: dict[str, Split] = {}
    """Sets by name; the remaining rows are the training set. A number is the short form of a random fraction."""
    window: Window | None = None
    """Samples are slices of consecutive rows; left out: one row each."""
    shuffle: bool = True
    """The training set in another order in each epoch; other sets keep the order of the file."""
    shuffle_window: Rows | None = None
    """How many samples are held in memory and mixed with each other, over all ranks, where files are read in blocks
    (row groups, record batches). Left out: all samples if the set is held whole (up to 2 GiB), else 512 MiB of them."""
    shuffle_streams: Annotated[int, Bounds(ge=1, le=1 << 16)] | None = None
    """In how many streams such a set is read, each by as few ranks as can be; the order depends on it. Left out: up to
    32, as many as the blocks in `shuffle_window` allow."""
    workers: Annotated[int, Bounds(ge=0)] = 0
    """Loader processes per rank."""
    on_bad_row: Literal["error", "skip"] = "error"
    """What becomes of a row that does not parse, misses a value, or holds a picture that cannot be decoded: it ends the
    run, or it is left out, counted and listed in `skipped_rows.jsonl` of the run."""
    last_batch: Literal["keep", "drop"] = "keep"
    """What becomes of the last, partial batch of an epoch."""
