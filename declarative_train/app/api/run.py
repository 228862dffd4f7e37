"""Run in the Python API: its state, its curves, its trained model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from declarative_train.app.api.display import text_html
from declarative_train.app.api.errors import RUN_FAILED, WRONG_USE, DtrainError
from declarative_train.app.api.hints import no_attribute
from declarative_train.app.api.tables import Table, as_table, columns_of, epoch_rows, step_rows
from declarative_train.app.records.record import Record, State, is_run, read_record
from declarative_train.core.names import EVENTS
from declarative_train.core.packs import hooks
from declarative_train.plan.checkpoint_files import sort_newest_first
from declarative_train.run.event import Event
from declarative_train.run.sinks.jsonl import read_events

if TYPE_CHECKING:
    from torch import nn

    from declarative_train.app.api.evaluation import Evaluation
    from declarative_train.app.trained import ExportDtype, ExportFormat
    from declarative_train.inference.trained import Trained


def open_run(path: str | os.PathLike[str]) -> Run:
    """Return the run in a folder. For the folder of a recipe's runs, return the newest run. Raises DtrainError if the
    folder has none."""
    folder = Path(path)
    if folder.is_dir() and not is_run(str(folder)):
        inside = [each.path for each in os.scandir(folder) if each.is_dir() and is_run(each.path)]
        folder = Path(sort_newest_first(inside)[0]) if inside else folder
    if not is_run(str(folder)):
        found = f"{folder} is not a run" if folder.exists() else f"there is no run {folder}"
        raise DtrainError(f"{found}: give the folder of a run, such as runs/NAME/TIME", exit_code=WRONG_USE)
    return Run(folder)


class Run:
    """Run, given by its folder. Every access reads the files again, so a run in progress can be followed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    @property
    def record(self) -> Record:
        """Record of the run, with the facts that `dtrain runs` lists."""
        found = read_record(str(self.folder))
        if found is None:
            raise DtrainError(f"the folder {self.folder} of the run does not exist any more", exit_code=RUN_FAILED)
        return found

    @property
    def state(self) -> State:
        """State of the run: running, finished, stopped early (`training.early_stop`), stopped (with a checkpoint), or
        failed."""
        return self.record.state

    @property
    def result(self) -> dict[str, float]:
        """Final value of every metric of every set, by `<set>/<metric>`; the best values are at `best/...`. If the run
        has not ended, the latest values.
        """
        return dict(self.record.values)

    @property
    def events(self) -> list[Event]:
        """Events of the run from all its sessions, in order. A session is one start of the run; a resumed run has
        several."""
        path = self.folder / EVENTS
        return read_events(path) if path.exists() else []

    @property
    def metrics(self) -> Table:
        """Table with a row for each logged step (`logging.every`): `step`, `epoch`, and columns named as in TensorBoard
        (`training/loss`, `training/lr`, `validation/accuracy`; empty if not measured). It is a pandas DataFrame if
        pandas is installed, otherwise a pyarrow Table."""
        return as_table(step_rows(self.events))

    @property
    def epochs(self) -> Table:
        """Table with a row for each epoch: the training means, and the results of the evaluations at the end of the
        epoch. It is a pandas DataFrame or a pyarrow Table, as for `metrics`."""
        return as_table(epoch_rows(self.events))

    def trained(self, *, plugins: bool = True) -> Trained:
        """Return the trained model with its fields, statistics and class names. The weights are those of the best
        checkpoint, or of the newest if none is marked as best. `plugins`: import the plugins of the run. Raises
        DtrainError."""
        from declarative_train.inference.trained import open_trained

        with _convert_errors():
            return open_trained(self.folder, plugins=plugins)

    def module(self, *, device: str = "cpu") -> nn.Module:
        """Return the trained model on a device, in evaluation mode, with the parameter names of the recipe.

        Call it with one tensor for each field in `Trained.plan.graph.inputs`, in this order, converted as in training.
        It returns a tuple with a tensor for each name in `Trained.plan.graph.outputs`, which the losses and metrics
        read. Raises DtrainError.
        """
        with _convert_errors():
            return self.trained().module(device)

    def predict(
        self,
        rows: Any,
        *,
        outputs: Sequence[str] = (),
        keep: Sequence[str] = (),
        batch_size: int | None = None,
        device: str = "auto",
        ranks: int = 1,
    ) -> Table:
        """Apply the model to new rows, as `dtrain predict` does. Return a pandas DataFrame, or a pyarrow Table without
        pandas: class names and probabilities for targets of classes, else numbers in the unit of the target's column.

        `rows`     pandas DataFrame (whose index the result has) or Series (one row), pyarrow Table, mapping of columns,
                   list of rows, or path of a file (csv, jsonl, parquet, npy)
        `outputs`  nodes whose outputs are returned unchanged, such as an embedding
        `keep`     columns of `rows` to repeat in the result
        `ranks`    number of processes that share the rows

        Raises DtrainError.
        """
        from declarative_train.inference.predict import Prediction

        with _convert_errors():
            trained = self.trained()
            prediction = Prediction(trained, outputs=outputs, batch_size=batch_size, device=device, ranks=ranks)
            if isinstance(rows, str | os.PathLike):
                samples = prediction.open_files([os.fspath(rows)], keep)
            else:
                samples = prediction.of_frame(columns_of(rows), keep)
            return as_table(list(prediction.tables(samples)), like=rows)

    def evaluate(
        self,
        rows: Any = None,
        *,
        set: str | None = None,
        num_worst: int = 5,
        max_samples: int | None = None,
        batch_size: int | None = None,
        device: str = "auto",
        ranks: int = 1,
    ) -> Evaluation:
        """Evaluate the trained model, as `dtrain evaluate` does, and return exact metrics, the confusions and the worst
        samples.

        The samples are `rows`, new rows with targets in the forms that `predict` accepts, or else the set `set` of the
        run (None: the first set that it evaluated). `max_samples`: evaluate only this number of samples of the set, as
        `evaluation.max` does. `ranks`: number of processes that share the samples. Raises DtrainError.
        """
        from declarative_train.app.api.evaluation import Evaluation
        from declarative_train.inference.evaluate import evaluate

        if rows is not None and set is not None:
            raise DtrainError("evaluate accepts rows or a set of the run, not both", exit_code=WRONG_USE)
        with _convert_errors(), _as_file(rows) as data:
            result = evaluate(
                self.trained(),
                set_name=set,
                data=data,
                max_samples=max_samples,
                num_worst=num_worst,
                batch_size=batch_size,
                device=device,
                ranks=ranks,
            )
        return Evaluation(result)

    def export(
        self,
        to: ExportFormat,
        folder: str | os.PathLike[str] | None = None,
        *,
        outputs: Sequence[str] = (),
        inputs: Literal["raw", "prepared"] = "raw",
        dtype: ExportDtype | None = None,
    ) -> Any:
        """Write a folder with the model in the format of another tool, as `dtrain export` does. Raises DtrainError."""
        export = next(hooks("export"), None)
        if export is None:
            raise DtrainError("no installed pack exports models", exit_code=WRONG_USE)
        with _convert_errors():
            return export(self.trained(), to, folder, outputs=outputs, numbers=inputs, dtype=dtype)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise no_attribute("Run", name, dir(type(self)))

    def __repr__(self) -> str:
        record = self.record
        values = ", ".join(f"{name} {value:.4g}" for name, value in list(record.values.items())[:4])
        return f"<Run {self.folder}: {record.state} after {record.step:,} steps{', ' * bool(values)}{values}>"

    def _repr_html_(self) -> str:
        from declarative_train.app.records.record import checkpoints_of

        record, (last, best) = self.record, checkpoints_of(str(self.folder))
        rows = [
            ("run", str(self.folder)),
            ("state", record.state),
            ("steps", f"{record.step:,} of {record.num_steps:,}"),
        ]
        rows += [(name, f"{value:.6g}") for name, value in record.values.items()]
        rows += [(word, path) for word, path in (("checkpoint", last), ("best", best)) if path is not None]
        width = max(len(name) for name, _ in rows)
        return text_html("\n".join(f"{name:<{width}}  {value}" for name, value in rows))


@contextmanager
def _as_file(rows: Any) -> Iterator[str | None]:
    """Yield a path to `rows` for the `with` block. A table in memory is written to a temporary file; a path and None
    are yielded unchanged."""
    if rows is None or isinstance(rows, str | os.PathLike):
        yield None if rows is None else os.fspath(rows)
        return
    from pyarrow import parquet

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.parquet")
        parquet.write_table(columns_of(rows), path)
        yield path


@contextmanager
def _convert_errors() -> Iterator[None]:
    """Convert the errors of commands to DtrainError within the `with` block."""
    from declarative_train.components.registry import ComponentError
    from declarative_train.data.spec import DataError
    from declarative_train.engine.failures import RunFailure, explain
    from declarative_train.files.paths import SourceError
    from declarative_train.inference.input import InputError
    from declarative_train.inference.trained import UsageError

    try:
        yield
    except DtrainError:
        raise
    except InputError as error:
        raise DtrainError(str(error), exit_code=1) from None
    except UsageError as error:
        raise DtrainError(str(error), exit_code=WRONG_USE) from None
    except (RunFailure, DataError, ComponentError, SourceError, OSError, MemoryError) as error:
        raise DtrainError(explain(error), exit_code=RUN_FAILED) from error
