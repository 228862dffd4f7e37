"""`checkpoint`: when the state of a run is kept, and how much of it."""

from typing import Annotated, Literal

from pydantic import Field

from declarative_train.components.durations import Progress
from declarative_train.recipe.sections.section import Section


class Best(Section):
    """Which checkpoint is the best one; it is kept besides the last ones."""

    metric: str
    """What to compare: `<set>/loss` or `<set>/<metric>`, such as validation/accuracy."""
    mode: Literal["min", "max"]
    """Whether less or more is better."""


class Checkpoint(Section):
    """When the state of a run is kept, and how much of it."""

    every: Progress | None = None
    """How often, such as `1 epoch`; left out: at the end of the run."""
    keep: Annotated[int, Field(ge=0)] = 1
    """How many of the last checkpoints stay; the best one and the last good one always do. 0: none is written, unless
    a signal or `max_time` stops the run."""
    best: Best | None = None
    """Keep the checkpoint with the best value of a metric, too."""
    background: bool = False
    """Whether training goes on while one is written, from a copy of it in the memory of the host."""
    base: Literal["reference", "whole"] = "reference"
    """Of a model with adapters: `reference` names the safetensors files that its frozen parameters came from, and what
    they were; `whole` holds the parameters, so that a checkpoint needs no other file."""
    dir: Annotated[str, Field(min_length=1)] | None = None
    """Where checkpoints go, apart from the run's folder: a folder, relative to the working directory, or a URL
    (s3://bucket/folder). A run's are in `<dir>/<name>/<run>/checkpoints`; left out: in the run's folder."""
