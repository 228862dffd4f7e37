"""Sink for MLflow: parameters, metrics by step, the plan and the recipe as artifacts, the status of the run.

The run's id in MLflow is in the file `mlflow.json` of the run's folder, so that a resumed run continues the same MLflow
run. MLflow keeps every value: a step that was repeated after a crash has two values, and the later one is valid."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from declarative_train.run.event import Event, Notice, RunEnded, RunStarted
from declarative_train.run.sinks.background import REQUEST_S, BackgroundSink, read_run_id, write_run_id
from declarative_train.run.sinks.tensorboard import scalars

MOST_METRICS, MOST_PARAMS = 1000, 100  # MLflow's limits per request
MOST_CHARACTERS = 500  # of a parameter's value: the limit of all backends
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_S),
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_STATES = {"finished": "FINISHED", "early_stop": "FINISHED", "stopped": "KILLED"}


class MlflowSink(BackgroundSink):
    """Sink that writes to one MLflow run. `uri`: server or database; None: MLFLOW_TRACKING_URI or, if this is not set,
    a database in `folder`. `experiment`: name of the experiment; None: the recipe's name."""

    @classmethod
    def from_settings(cls, run_dir: Path, settings: Mapping[str, Any]) -> Self:
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
                Metric(key=_replace_characters(name), value=value, timestamp=int(time_unix_s * 1e3), step=step)
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
        id_file = self._run_dir / "mlflow.json"
        earlier = read_run_id(id_file)
        server = re.sub(r"//[^@/]*@", "//", self._uri)  # keep the password out of the file
        if earlier.get("uri") == server and self._exists(earlier.get("run_id", "")):
            self._run_id = earlier["run_id"]
            self._client.update_run(self._run_id, status="RUNNING")
            self._client.set_tag(self._run_id, "resumed_after_step", event.first_step)
        else:
            created = self._client.create_run(
                self._experiment_id(self._experiment or event.name),
                start_time=int(event.time_unix_s * 1e3),
                run_name=self._run_dir.name,
                tags={"mode": event.mode, "device": event.device, "run_dir": str(self._run_dir.absolute())},
            )
            self._run_id = created.info.run_id
            write_run_id(id_file, uri=server, run_id=self._run_id)
        self._params(event.hyperparameters)
        self._client.log_text(self._run_id, event.plan_text, "plan.txt")
        for name, text in recipe_texts(self._run_dir):
            self._client.log_text(self._run_id, text, f"recipe/{name}")

    def _exists(self, run_id: str) -> bool:
        """Return whether the server has this run. It may have been deleted there, or the database may be new."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(run_id).info.lifecycle_stage == "active")
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return False
            raise

    def _experiment_id(self, name: str) -> str:
        """Return the id of the experiment `name`, which is created if it does not exist. Artifacts of a local database
        go into the folder of the database; MLflow's default would be the working directory."""
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            is_local = self._uri == local_store(self._folder)
            place = (self._folder / "mlflow-artifacts").absolute().as_uri() if is_local else None
            try:
                return str(self._client.create_experiment(name, artifact_location=place))
            except MlflowException:  # another run has created it meanwhile
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _params(self, hyperparameters: Mapping[str, object]) -> None:
        """Log the hyper-parameters. Those that have changed since an earlier session become tags, because MLflow
        refuses to change a parameter."""
        from mlflow.entities import Param

        there = self._client.get_run(self._run_id).data.params
        wanted = {_replace_characters(name): str(value)[:MOST_CHARACTERS] for name, value in hyperparameters.items()}
        new = [Param(name, value) for name, value in wanted.items() if name not in there]
        for part in _parts(new, MOST_PARAMS):
            self._client.log_batch(self._run_id, params=part)
        for name, value in wanted.items():
            if there.get(name, value) != value:
                self._client.set_tag(self._run_id, f"changed.{name}", value)


def local_store(folder: Path) -> str:
    return f"sqlite:///{(folder / 'mlflow.db').absolute()}"


def open_client(uri: str) -> Any:
    """Import MLflow, which takes seconds, and return a client of the server or database at `uri`. It waits less long
    for an answer than by default, unless the user set the time-outs."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)  # no messages about each table of a new database
    return MlflowClient(tracking_uri=uri)


def recipe_texts(run_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of each file of the recipe, as stored with the plan in the run's folder."""
    try:
        recipe = json.loads((run_dir / "plan.json").read_text("utf-8")).get("recipe", {})
    except (OSError, ValueError):
        return
    for path, text in recipe.items():
        yield Path(path).name, str(text)


def _replace_characters(name: str) -> str:
    """Return the name with `_` in place of each character that MLflow does not accept. It accepts letters, digits,
    underscores, dashes, periods, spaces and slashes."""
    return re.sub(r"[^\w\-. /]", "_", name)


def _parts(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))
