"""Events to MLflow: parameters, metrics by step, the plan and the recipe as artifacts, the state of the run.

The run's id stands in `mlflow.json` of the run's folder, so a resumed run goes on in the same MLflow run. MLflow keeps
every value: steps that a crash made a run do twice have two, of which the later one was trained on.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from declarative_train.run.event import Event, Notice, RunEnded, RunStarted
from declarative_train.run.sinks.background import REQUEST_S, BackgroundSink, remember, remembered
from declarative_train.run.sinks.tensorboard import scalars

MOST_METRICS, MOST_PARAMS = 1000, 100  # of one request, by MLflow's interface
MOST_CHARACTERS = 500  # of a parameter's value: what every backend takes
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_S),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_STATES = {"finished": "FINISHED", "early_stop": "FINISHED", "stopped": "KILLED"}


class MlflowSink(BackgroundSink):
    """`uri` None: that of MLFLOW_TRACKING_URI, or else a database below `folder`. `experiment` None: the recipe's
    name."""

    @classmethod
    def chosen(cls, run_dir: Path, settings: Mapping[str, Any]) -> Self:
        return cls(run_dir, settings.get("uri"), settings.get("experiment"), Path(settings["folder"]))

    def __init__(self, run_dir: Path, uri: str | None, experiment: str | None, folder: Path) -> None:
        self._run_dir, self._folder, self._experiment = run_dir, folder, experiment
        self._uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or local_store(folder)
        self._client: Any = None
        self._run_id = ""
        self._state = "FAILED"
        super().__init__()

    def _send(self, events: Sequence[Event]) -> None:
        from mlflow.entities import Metric

        metrics = []
        for event in events:
            if isinstance(event, RunStarted):
                self._start(event)
            elif isinstance(event, Notice):
                self._client.set_tag(self._run_id, "notice", event.message)
            step, time_unix_s, values = scalars(event)
            metrics += [
                Metric(key=_name(name), value=value, timestamp=int(time_unix_s * 1e3), step=step)
                for name, value in values.items()
            ]
            if isinstance(event, RunEnded):
                self._state = _STATES.get(event.status, "FINISHED")
                self._client.set_tag(self._run_id, "state", event.status)
        for part in _parts(metrics, MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=part)

    def _finish(self) -> None:
        self._client.set_terminated(self._run_id, self._state)

    def _start(self, event: RunStarted) -> None:
        self._client = open_client(self._uri)
        kept = self._run_dir / "mlflow.json"
        known = remembered(kept)
        place = re.sub(r"//[^@/]*@", "//", self._uri)  # a password stays out of the file
        if known.get("uri") == place and self._is_there(known.get("run_id", "")):
            self._run_id = known["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
            self._client.set_tag(self._run_id, "resumed_after_step", event.first_step)
        else:
            made = self._client.create_run(
                self._experiment_id(self._experiment or event.name),
                start_time=int(event.time_unix_s * 1e3),
                run_name=self._run_dir.name,
                tags={"mode": event.mode, "device": event.device, "run_dir": str(self._run_dir.absolute())},
            )
            self._run_id = made.info.run_id
            remember(kept, uri=place, run_id=self._run_id)
        self._params(event.hyperparameters)
        self._client.log_text(self._run_id, event.plan_text, "plan.txt")
        for name, text in recipe_texts(self._run_dir):
            self._client.log_text(self._run_id, text, f"recipe/{name}")

    def _is_there(self, run_id: str) -> bool:
        """A run that was deleted there, or a database that is new, gets another run."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return False
            raise

    def _experiment_id(self, name: str) -> str:
        """Artifacts of the local database lie beside it: MLflow's own choice is the working directory."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            is_local = self._uri == local_store(self._folder)
            place = (self._folder / "mlflow-artifacts").absolute().as_uri() if is_local else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # another run has made it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _params(self, hyperparameters: Mapping[str, object]) -> None:
        """MLflow refuses another value for a parameter: what a resumed run changed stands as a tag."""
        from mlflow.entities import Param

        there = self._client.get_run(self._run_id).data.params
        wanted = {_name(name): str(value)[:MOST_CHARACTERS] for name, value in hyperparameters.items()}
        new = [Param(name, value) for name, value in wanted.items() if name not in there]
        for part in _parts(new, MOST_PARAMS):
            self._client.log_batch(self._run_id, params=part)
        for name, value in wanted.items():
            if there.get(name, value) != value:
                self._client.set_tag(self._run_id, f"changed.{name}", value)


def local_store(folder: Path) -> str:
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}"


def open_client(uri: str) -> Any:
    """Imports MLflow (seconds), with short time-outs where the user set none."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)  # that a database is made, table by table
    return MlflowClient(tracking_uri=uri)


def recipe_texts(run_dir: Path) -> Iterator[tuple[str, str]]:
    """The recipe's files by name, from the plan in the run's folder."""
    try:
        recipe = json.loads((run_dir / "plan.json").read_text("utf-8")).get("recipe", {})
    except (OSError, ValueError):
        return
    for path, text in recipe.items():
        yield Path(path).name, str(text)


def _name(name: str) -> str:
    """What MLflow allows: letters, digits, underscores, dashes, periods, spaces, slashes."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
