"""The places that events go to, by name: a run writes to all of them. Imported on the rank that has them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from declarative_train.logs.sink import Sink

SINKS: dict[str, str] = {
    "console": "declarative_train.logs.sinks.console.ConsoleSink",
    "jsonl": "declarative_train.logs.sinks.jsonl.JsonlSink",
    "tensorboard": "declarative_train.logs.sinks.tensorboard.TensorBoardSink",
}


def open_sinks(quiet: bool, run_dir: Path) -> Sequence[Sink]:
    """In the order of the table. Raises OSError when a place cannot be written."""
    kinds = []
    for address in SINKS.values():
        module, _, name = address.rpartition(".")
        kinds.append(getattr(import_module(module), name))
    return tuple(kind.of_run(run_dir, quiet) for kind in kinds)
