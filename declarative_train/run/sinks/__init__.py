"""Tables of the sinks by name. Only rank 0 imports the sinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from declarative_train.core.machine import SINK_PACKAGES, extra_for
from declarative_train.run.sink import Sink

# sinks of every run
SINKS: dict[str, str] = {
    "console": "declarative_train.run.sinks.console.ConsoleSink",
    "jsonl": "declarative_train.run.sinks.jsonl.JsonlSink",
}
# sinks that a recipe can choose with `logging.sinks`
CHOICES: dict[str, str] = {
    "csv": "declarative_train.run.sinks.csv_table.CsvSink",
    "mlflow": "declarative_train.run.sinks.mlflow_server.MlflowSink",
    "tensorboard": "declarative_train.run.sinks.tensorboard.TensorBoardSink",
    "wandb": "declarative_train.run.sinks.wandb_run.WandbSink",
}

Chosen = Mapping[str, Mapping[str, Any]]
"""Settings of each sink, by its name."""
DEFAULT: Chosen = {"tensorboard": {}}


def open_sinks(quiet: bool, chosen: Chosen, run_dir: Path) -> Sequence[Sink]:
    """Open the built-in sinks of a run and return them: those of every run, then those that the recipe chooses
    (`chosen`). `quiet`: show no progress in the terminal. Raises OSError if a destination cannot be written."""
    always = [_class(address).of_run(run_dir, quiet) for address in SINKS.values()]
    return (
        *always,
        *(_class(CHOICES[name]).from_settings(run_dir, chosen[name]) for name in CHOICES if name in chosen),
    )


def sink_problems(chosen: Chosen) -> Iterator[str]:
    """Yield a sentence on the first chosen sink whose package is missing or, if there is none, on a missing API key of
    Weights & Biases. The packages are not imported."""
    for name in SINK_PACKAGES:
        install = extra_for(name) if name in chosen else None
        if install is not None:
            yield f"logging.sinks.{name} needs the package {name}; help: {install}"
            return
    if "wandb" in chosen and chosen["wandb"].get("mode") == "online":
        from declarative_train.run.sinks.wandb_run import has_key

        if not has_key():
            yield "logging.sinks.wandb needs an API key; help: `wandb login`, WANDB_API_KEY, or `mode: offline`"


def _class(address: str) -> type[Sink]:
    module, _, name = address.rpartition(".")
    found: type[Sink] = getattr(import_module(module), name)
    return found
