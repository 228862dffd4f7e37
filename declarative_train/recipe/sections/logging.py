"""Section `logging`: the folder of runs, and how often values are logged."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, create_model

from declarative_train.components.durations import Progress
from declarative_train.core.duration import Duration
from declarative_train.recipe.sections.section import Section

RUNS = "runs"


def _check_folder(folder: str) -> str:
    """Return the name of a folder unchanged. Raises ValueError for `memory://...`, whose content is lost when the
    process ends.
    """
    if folder.startswith("memory:"):
        raise ValueError(f"`{folder}` is memory of one process: use a folder, or a URL such as s3://bucket/runs")
    return folder


class TensorBoard(Section):
    """TensorBoard: event files in the run's folder."""

    pictures: bool = True
    """Whether evaluations of a model with up to 40 classes also write a confusion matrix and a few samples."""


class Csv(Section):
    """CSV: the file metrics.csv in the run's folder."""


class Jsonl(Section):
    """JSON lines: the file events.jsonl in the run's folder. Every run writes it, also without this key."""


class Mlflow(Section):
    """MLflow: the metrics and settings of the run are written to a run of MLflow."""

    uri: str | None = None
    """The tracking server, such as http://host:5000; left out: MLFLOW_TRACKING_URI, or else mlflow.db in `dir`."""
    experiment: str | None = None
    """The experiment of the run; left out: the recipe's name."""


class Wandb(Section):
    """Weights & Biases: the metrics and settings of the run are written to a run of Weights & Biases."""

    project: str | None = None
    """The project of the run; left out: the recipe's name."""
    mode: Literal["offline", "online"] = "online"
    """offline writes below wandb/ in the run's folder, for `wandb sync`."""


class PluginSink(Section):
    """Base class of the sections for sinks that plugins define. The fields of a subclass are the settings of the sink;
    `plugin_path` and `plugin_class` are its file and its class.
    """

    plugin_path: ClassVar[str] = ""
    plugin_class: ClassVar[str] = ""


class Sinks(Section):
    """Destinations of metrics and events in addition to the terminal and events.jsonl. Sinks that `plugins` define are
    allowed too.
    """

    # The schema allows other names, because a plugin may define sinks.
    model_config = ConfigDict(json_schema_extra={"additionalProperties": {"type": "object"}})

    tensorboard: TensorBoard | None = None
    """TensorBoard's event files."""
    csv: Csv | None = None
    """A table, metrics.csv, with a row for each logged step and each evaluation."""
    jsonl: Jsonl | None = None
    """JSON lines in events.jsonl. Every run writes this file, so `jsonl` alone means that there is no other sink."""
    mlflow: Mlflow | None = None
    """MLflow; needs the package `declarative_train[mlflow]`."""
    wandb: Wandb | None = None
    """Weights & Biases; needs the package `declarative_train[wandb]`."""


class Logging(Section):
    """The folder of runs (`<dir>/<name>/<time>-<mode>-...`), how often values are logged, and to which sinks."""

    dir: Annotated[str, AfterValidator(_check_folder)] = RUNS
    """The folder of all runs, relative to the working directory; or a URL, such as s3://bucket/runs. With a URL, runs
    are written to the local folder `runs` and copied to the URL, and their checkpoints are at the URL.
    """
    every: Progress = Duration(10, "steps")
    """How often the loss, the metrics and the speed of the training are logged."""
    sinks: Sinks = Sinks(tensorboard=TensorBoard())
    """Sinks in addition to the terminal and events.jsonl; if given, they replace TensorBoard."""


def logging_with(sinks: Mapping[str, type[PluginSink]]) -> type[Logging]:
    """Return the class of the section `logging` with sinks in addition to those of dtrain. `sinks`: {name: class of its
    section}.
    """
    more: dict[str, Any] = {name: (kind | None, None) for name, kind in sinks.items()}
    whole = create_model("Sinks", __base__=Sinks, __module__=__name__, **more)
    kinds: Any = (whole, whole(tensorboard=TensorBoard()))
    return create_model("Logging", __base__=Logging, __module__=__name__, sinks=kinds)
