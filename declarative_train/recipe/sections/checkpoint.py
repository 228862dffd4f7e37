"""Section `checkpoint`: how often checkpoints are saved, which of them are kept, and where."""

from typing import Annotated, Literal

from pydantic import Field

from declarative_train.components.durations import Progress
from declarative_train.recipe.sections.section import Section


class Best(Section):
    """The checkpoint with the best value of a metric, which is kept in addition to the last ones."""

    metric: str
    """Metric to compare: `<set>/loss` or `<set>/<metric>`, such as validation/accuracy."""
    mode: Literal["min", "max"]
    """Whether smaller (`min`) or larger (`max`) values are better."""


class Checkpoint(Section):
    """Checkpoints: how often they are saved, which of them are kept, and where."""

    every: Progress | None = None
    """How often a checkpoint is saved, such as `1 epoch`; left out: only at the end of the run."""
    keep: Annotated[int, Field(ge=0)] = 1
    """Number of last checkpoints to keep. The best one and the newest complete one are never removed. 0: no checkpoint
    is saved, unless a signal or `max_time` stops the run.
    """
    best: Best | None = None
    """Also keep the checkpoint with the best value of a metric."""
    background: bool = True
    """Whether training continues while a checkpoint is written. It is then written from a copy in host memory."""
    on_failure: Literal["stop", "warn"] = "stop"
    """What happens if a checkpoint cannot be written: `stop` fails the run, `warn` continues without this checkpoint.
    The last checkpoint of a run must always succeed. Writing to an object store is tried for 300 s.
    """
    base: Literal["reference", "whole"] = "reference"
    """For a model with adapters, how a checkpoint has the frozen parameters: `reference` records their safetensors
    files and a hash of their content; `whole` stores the parameters, so that the checkpoint needs no other file.
    """
    dir: Annotated[str, Field(min_length=1)] | None = None
    """Folder for checkpoints outside the run's folder: relative to the working directory, or a URL
    (s3://bucket/folder). The checkpoints of a run are then in `<dir>/<name>/<run>/checkpoints`; left out: in the run's
    folder.
    """
