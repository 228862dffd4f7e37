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
    """Whether less or more is better."""


class Checkpoint(Section):
    """Checkpoints: how often they are saved, which of them are kept, and where."""

    every: Progress | None = None
    """How often, such as `1 epoch`; left out: at the end of the run."""
    keep: Annotated[int, Field(ge=0)] = 1
    """Number of last checkpoints to keep; the best one and the last good one are always kept. 0: none is written,
    unless a signal or `max_time` stops the run.
    """
    best: Best | None = None
    """Also keep the checkpoint with the best value of a metric."""
    background: bool = True
    """Whether training continues while one is written, from a copy in host memory."""
    on_failure: Literal["stop", "warn"] = "stop"
    """What follows if one cannot be written, to an object store after 300 s of trying again: `stop` fails the run,
    `warn` continues without it. A run that ends needs its last one.
    """
    base: Literal["reference", "whole"] = "reference"
    """For a model with adapters: `reference` records the safetensors files of its frozen parameters, and their content;
    `whole` stores the parameters, so that a checkpoint needs no other file.
    """
    dir: Annotated[str, Field(min_length=1)] | None = None
    """Folder for checkpoints outside the run's folder: relative to the working directory, or a URL
    (s3://bucket/folder). Those of a run are in `<dir>/<name>/<run>/checkpoints`; left out: in the run's folder.
    """
