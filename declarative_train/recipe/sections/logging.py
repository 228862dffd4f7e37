"""`logging`: where the run directory goes, and how often numbers are written."""

from typing import Annotated

from pydantic import AfterValidator

from declarative_train.components.durations import Progress
from declarative_train.recipe.sections.section import Section
from declarative_train.terms.duration import Duration


def _local(folder: str) -> str:
    """Every rank and every tool writes and reads a run as files; a URL would become a folder called `memory:`."""
    if "://" in folder:
        raise ValueError(f"`{folder}` is a URL: `logging.dir` must be a local folder, such as `runs` or a mounted one")
    return folder


class Logging(Section):
    """Where the run directory goes (`<dir>/<name>/<time>-<mode>-...`), and how often numbers are written."""

    dir: Annotated[str, AfterValidator(_local)] = "runs"
    """The folder of all runs on this machine, relative to the working directory."""
    every: Progress = Duration(10, "steps")
    """How often loss, metrics and speed of the training are written."""
