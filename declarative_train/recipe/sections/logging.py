"""`logging`: where the run directory goes, and how often numbers are written."""

from __future__ import annotations

from declarative_train.recipe.sections.durations import Progress
from declarative_train.recipe.sections.section import Section
from declarative_train.terms.duration import Duration


class Logging(Section):
    """Where the run directory goes (`<dir>/<name>/<timestamp>/`), and how often numbers are written."""

    dir: str = "runs"
    """The folder of all runs, relative to the working directory."""
    every: Progress = Duration(10, "steps")
    """How often loss, metrics and speed of the training are written."""
