"""Evaluation of a trained model on rows with targets: exact metrics, reports on its errors, and the worst samples.

The metrics are computed by the code that computes them in training, so they equal the logged values. The reports also
use the meaning of each output (class, number), which follows from the losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from declarative_train.components.layers.sample_groups import HoldsSamples
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.core.packs import hooks
from declarative_train.data.batch import Batch
from declarative_train.data.field_reader import BadSampleError
from declarative_train.data.prepared_set import PreparedSet, prepare
from declarative_train.data.rank_batches import EvaluationBatches
from declarative_train.data.rows import RowRange, row_order
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.source import arrange_rows
from declarative_train.data.spec import DataError, SetSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.data.tensor_sets import of_prepared
from declarative_train.engine.collectives import Alone, Ranks
from declarative_train.engine.devices import exact_device
from declarative_train.engine.step.precision import default_dtype
from declarative_train.engine.step.step_runner import RankContext, StepRunner
from declarative_train.files.paths import SourceError
from declarative_train.inference.fields import RowConverter, columns_of_folder
from declarative_train.inference.forward import batch_rows, device_for, find_random_nodes
from declarative_train.inference.input import InputChunk, InputError
from declarative_train.inference.ranks import run_ranks
from declarative_train.inference.reading import STDIN, open_input, spool_stdin
from declarative_train.inference.report import Comparison, Report
from declarative_train.inference.reports import Gatherer, Origin, gatherers
from declarative_train.inference.sample_batches import PIECE_BATCHES
from declarative_train.inference.target_values import check_target_values
from declarative_train.inference.trained import Trained, UsageError, check_source
from declarative_train.inference.windows import make_field_reader, table_of
from declarative_train.plan.output_semantics import meanings
from declarative_train.plan.subgraph import whole_graph
from declarative_train.run.evaluate import Evaluator

if TYPE_CHECKING:
    from declarative_train.plan.plan import MetricPlan, TermPlan

_MOST_VALUES = 64  # columns of a worst sample that are shown
DATA = "data"  # name of the set of new rows


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Result of an evaluation. `trained`: name of the model. `values`: losses and metrics by `<set>/<name>`, as in the
    log. `reports`: one for each output that is known to predict a class or a number. `logged`: values that the training
    run logged for this set and step, or {}. `comparison`: simple models on the same rows, or None."""

    trained: str
    step: int
    set: str
    num_samples: int
    values: dict[str, float]
    reports: tuple[Report, ...]
    logged: dict[str, float]
    notices: tuple[str, ...] = ()
    comparison: Comparison | None = None

    @property
    def own_value(self) -> float | None:
        """Value of the metric `comparison.metric` for the trained model; None without a comparison with simple
        models."""
        if self.comparison is None:
            return None
        # the report is about the compared output; a metric of the same name may be about another
        values = {name.partition("/")[2]: value for name, value in self.values.items()} | self.reports[0].metrics
        return values.get(self.comparison.metric)

    def as_json(self) -> dict[str, Any]:
        """Return the result as values that JSON can represent; nan and infinite numbers become None."""
        found = asdict(self)
        for report in found["reports"]:
            del report["points"]
        made: dict[str, Any] = _plain(found)
        return made


def evaluate(
    trained: Trained,
    *,
    set_name: str | None = None,
    data: str | Sequence[str] | None = None,
    max_samples: int | None = None,
    num_worst: int = 5,
    batch_size: int | None = None,
    device: str = "auto",
    ranks: int = 1,
    compare: bool = True,
) -> EvaluationResult:
    """Evaluate a trained model on new rows or on a whole set of the run. Raises UsageError, InputError, DataError and
    RunFailure.

    `set_name`     the set; default: the first one that the run evaluated
    `data`         paths, globs or URLs of new rows instead of a set; `-` is standard input (samples of one row)
    `max_samples`  largest number of samples of the set, chosen as by the run; None: all
    `num_worst`    number of worst samples in a report
    `batch_size`   rows per batch; None: chosen by `batch_rows`
    `device`       torch device, such as `cuda:1`; `auto`: a GPU if there is one and the run could use one
    `ranks`        number of processes that share the batches
    `compare`      also fit simple models to the training rows and evaluate them, if a pack has such models
    """
    if data is not None and list(data) == [STDIN] and (ranks > 1 or trained.plan.data.window is not None):
        data = [spool_stdin()]
    act = partial(
        _evaluate_share, trained, set_name, data, max_samples, num_worst=num_worst, batch_size=batch_size, device=device
    )
    found = act(Alone()) if ranks == 1 else run_ranks(ranks, device_for(trained, device).type, act)
    if not compare or not found.reports or (data is not None and list(data) == [STDIN]):
        return found
    return replace(found, comparison=_compare_with_simple_models(trained, found.set, data, max_samples))


def _compare_with_simple_models(
    trained: Trained, name: str, data: str | Sequence[str] | None, max_samples: int | None
) -> Comparison | None:
    """Return the metric values of simple models on the evaluated rows. Return None if the training rows cannot be read,
    or no pack has simple models for these data. `name`: the evaluated set. `data`: paths of new rows instead of a set,
    or None. `max_samples`: evaluate at most so many samples of the set."""
    size = batch_rows(trained, _fields_read(trained), None)

    def training() -> Iterator[Batch]:
        return (batch for batch, _ in _batches_of_set(trained, TRAINING, size, None)(0, 1))

    def evaluation() -> Iterator[Batch]:
        shares = (
            _batches_of_rows(trained, data, size)
            if data is not None
            else _batches_of_set(trained, name, size, max_samples)
        )
        return (batch for batch, _ in shares(0, 1))

    try:
        made = (hook(trained.plan, training, evaluation) for hook in hooks("compare_models"))
        return next((each for each in made if each is not None), None)
    except (DataError, UsageError):  # the run's own data are not here, or have changed
        return None


def _evaluate_share(
    trained: Trained,
    set_name: str | None,
    data: str | Sequence[str] | None,
    max_samples: int | None,
    ranks: Alone | Ranks,
    *,
    num_worst: int,
    batch_size: int | None,
    device: str,
) -> EvaluationResult:
    """Evaluate this rank's share of the samples. Return the result for the samples of all ranks; only rank 0's result
    has reports. `ranks`: the processes that share the samples. The other arguments are those of `evaluate`."""
    plan = trained.plan
    size = batch_rows(trained, _fields_read(trained), batch_size)
    where = device_for(trained, device, ranks.rank)
    if data is not None:
        if max_samples is not None:
            raise UsageError("--max is only for sets of the run, not for --data; help: use a file with fewer rows")
        name, title = DATA, data if isinstance(data, str) else data[0]
        made = (
            _batches_of_windows(trained, data, size)
            if plan.data.window is not None
            else _batches_of_rows(trained, data, size)
        )
    else:
        name = title = _set_of(trained, set_name)
        made = _batches_of_set(trained, name, size, max_samples)
    samples = _Samples(made, ranks)
    with default_dtype(plan):
        model = _Model(trained, where, gatherers(meanings(trained.plan), num_worst), samples, ranks)
        evaluator = Evaluator(plan, model, lambda _: model.batches())
        done, notices = evaluator(name, trained.step)
    if not done.num_samples:
        raise InputError(f"{title} has no row to evaluate")
    drawn = find_random_nodes(plan.graph)  # not in the batch graph, where random numbers depend only on the sample
    if drawn:
        notices.append(f"`{drawn[0]}` is random: other batches, and the run's ranks, give other values")
    notices += _compare_num_samples(trained, name, done.num_samples) if data is None else []
    logged = {key: value for key, value in trained.values.items() if key in done.values}
    return EvaluationResult(
        trained.name,
        trained.step,
        name,
        done.num_samples,
        dict(done.values),
        tuple(each.report() for each in _join(model.gatherers, ranks)),
        logged,
        tuple(notices),
    )


def _join(gathered: list[Gatherer], ranks: Alone | Ranks) -> list[Gatherer]:
    """Add the sums and worst samples of all ranks on rank 0. Return this rank's gatherers; only those of rank 0 are
    complete."""
    if ranks.size == 1:
        return gathered
    from torch import distributed

    for each in gathered:
        each.look_up_origins()
    found: list[list[Gatherer]] | None = [[]] * ranks.size if ranks.rank == 0 else None
    distributed.gather_object(gathered, found)
    for others in (found or [])[1:]:
        for mine, other in zip(gathered, others, strict=True):
            mine.join(other)
    return gathered


OriginBatch = tuple[Batch, "Sequence[Origin] | _LazyOrigins"]


class _Shares(Protocol):
    """Interface of a function that yields every `num`-th batch, beginning with the batch of index `first`, so that
    `num` ranks can share the batches. Each batch comes with the file and row number of each of its rows."""

    def __call__(self, first: int, num: int) -> Iterable[OriginBatch]: ...


class _Samples:
    """Batches that one rank evaluates, with the origins (file and row) of their rows."""

    def __init__(self, shares: _Shares, ranks: Alone | Ranks) -> None:
        self.batches = shares(ranks.rank, ranks.size)


class _LazyOrigins:
    """Origins (file and row) of the rows of a batch. Each origin is read only when it is used."""

    def __init__(self, prepared: PreparedSet, samples: np.ndarray) -> None:
        self._prepared, self._samples = prepared, samples

    def __getitem__(self, row: int) -> Origin:
        return partial(_origin_in, self._prepared, int(self._samples[row]))


def _origin_in(prepared: PreparedSet, sample: int) -> tuple[str, dict[str, object]]:
    places = np.asarray([sample], np.int64)
    if prepared.windows is not None:
        places = prepared.windows.starts(places)
    row = prepared.rows.at(places)
    table = prepared.table
    plain = [name for name, column in table.columns.items() if not column.shape and column.dtype != "bytes"]
    plain = plain[:_MOST_VALUES]
    values = {} if prepared.windows is not None else table.read(plain, row)
    return table.place(int(row[0])), {name: _python(array[0]) for name, array in values.items()}


class _Model:
    """Trained model with the interface of an engine (`run.evaluate.EvaluableModel`). It also passes its outputs to the
    `gatherers`, which collect them for reports."""

    def __init__(
        self,
        trained: Trained,
        device: torch.device,
        gatherers: list[Gatherer],
        samples: _Samples,
        ranks: Alone | Ranks,
    ) -> None:
        self.device, self.dp_rank, self.ranks = exact_device(device), 0, ranks
        self.gatherers = gatherers
        self._module = trained.module(device, keep_quantized=True)
        self._runner = StepRunner(trained.plan, self._module, device, Alone(), RankContext())
        self.objective = self._runner.objective
        held = [term.name for term, module in zip(self.objective.terms, self.objective.modules, strict=True)
                if isinstance(module, HoldsSamples)]  # fmt: skip
        if held and ranks.size > 1:
            raise UsageError(f"--ranks: the loss `{held[0]}` compares samples with each other; help: leave it out")
        self._samples = samples
        self._origins: Sequence[Origin] | _LazyOrigins = ()

    def batches(self) -> Iterator[Batch]:
        for batch, origins in self._samples.batches:
            self._origins = origins
            check_target_values(self.objective.terms, batch, origins.__getitem__)
            yield batch

    def set_training(self, training: bool) -> None:
        """Do nothing, because the model is always in evaluation mode."""

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        values = self._runner.evaluate(batch, self._module)
        for each in self.gatherers:
            each.first = int(batch.sample_ids[0]) if batch.num_rows else 0
            each.add(values, batch.num_rows, self._origins.__getitem__)
        return values


def _fields_read(trained: Trained) -> list[str]:
    """Return the names of all fields that the model, its losses or its metrics read."""
    plan = trained.plan
    graph = whole_graph(plan)
    read = {edge for node in graph.nodes for edge in node.inputs.values()}
    judged: list[TermPlan | MetricPlan] = [*plan.objective.terms, *plan.objective.metrics]
    for each in judged:
        read |= {name for name in (each.input, each.target, each.mask) if name is not None}
    return [name for name in trained.fields if name in read]


def _set_of(trained: Trained, wanted: str | None) -> str:
    names = [each.name for each in trained.plan.data.sets]
    if wanted is not None:
        if wanted not in names:
            raise UsageError(f"{trained.name} has no set `{wanted}`; help: {did_you_mean(wanted, names)}")
        return wanted
    evaluation = trained.plan.evaluation
    found = () if evaluation is None else (*evaluation.sets, *evaluation.final_sets)
    if not found:
        raise UsageError(f"{trained.name} has no set but `training`; help: --data FILE for new rows, or --set training")
    return found[0]


def _compare_num_samples(trained: Trained, name: str, num_samples: int) -> list[str]:
    """Return [notice] if the run itself evaluated the set `name` on another number of samples than `num_samples`, so
    that the values in its log differ. Otherwise return []."""
    evaluation = trained.plan.evaluation
    if evaluation is None or name not in (*evaluation.sets, *evaluation.final_sets):
        return []
    total = next(each.num_samples for each in trained.plan.data.sets if each.name == name)
    of_run = total if evaluation.max_samples is None else min(evaluation.max_samples, total)
    if of_run == num_samples:
        return []
    return [
        f"{name}: {num_samples:,} samples here, and {of_run:,} of {total:,} in the evaluations of the run, so the "
        f"values differ; help: --max {of_run} uses the same"
    ]


def _batches_of_set(trained: Trained, name: str, size: int, max_samples: int | None) -> _Shares:
    """Return the batches of a set of the run, as a `_Shares` function. The run's data files must still exist and be
    unchanged. `size`: rows per batch. `max_samples`: maximum number of samples; None: all."""
    plan = trained.plan
    check_source(trained, name)
    try:
        prepared = prepare_sets(plan.data)[name]
    except DataError as error:
        raise DataError(f"{error}; help: `--data FILE` evaluates rows of other files") from error
    return _samples(trained, prepared, size, max_samples)


def _samples(trained: Trained, prepared: PreparedSet, size: int, max_samples: int | None = None) -> _Shares:
    sets = {prepared.name: of_prepared(prepared)}
    batches = EvaluationBatches(trained.plan.data, prepared.name, sets, batch_size=size, max_samples=max_samples)
    return partial(_with_origins, batches, prepared)


def _with_origins(batches: EvaluationBatches, prepared: PreparedSet, first: int, num: int) -> Iterator[OriginBatch]:
    own = batches.iterate() if num == 1 else map(batches.batch, range(first, len(batches), num))
    for batch in own:
        yield batch, _LazyOrigins(prepared, batch.sample_ids)


def _batches_of_rows(trained: Trained, data: str | Sequence[str], size: int) -> _Shares:
    """Return a function that yields the batches of new rows, converted to fields as in the run. The function can be
    called only once. `data`: paths, globs or URLs, or `-` for standard input. `size`: rows per batch."""
    rows = open_input(data, trained.plan.data.source, names=columns_of_folder(trained.plan.data))
    specs = [trained.fields[name] for name in _fields_read(trained)]
    shown = [name for name in rows.names[:_MOST_VALUES] if name not in rows.large]
    fields = RowConverter(trained.plan.data, [spec.name for spec in specs], rows, shown)

    def batches(first: int, num: int) -> Iterator[OriginBatch]:
        pieces = rows.pieces(fields.read_columns, PIECE_BATCHES * size)
        read = (rows.read_piece(piece, fields.read_columns) for piece in islice(pieces, first, None, num))
        for chunk, values in chain.from_iterable(map(fields.convert, read)):
            for begin in range(0, chunk.num_rows, size):
                end = min(begin + size, chunk.num_rows)
                tensors = {spec.name: _tensor(values[spec.name][begin:end], spec.tensor.dtype) for spec in specs}
                batch = Batch(tensors, end - begin, None, np.arange(chunk.start + begin, chunk.start + end))
                yield batch, [partial(_origin_of, chunk, row, shown) for row in range(begin, end)]

    return batches


def _tensor(values: np.ndarray, dtype: str) -> torch.Tensor:
    array = np.ascontiguousarray(values)
    kind: torch.dtype = getattr(torch, dtype)
    return torch.from_numpy(array if array.flags.writeable else array.copy()).to(kind)


def _origin_of(chunk: InputChunk, row: int, names: Sequence[str]) -> tuple[str, dict[str, object]]:
    values = {name: _python(chunk.columns[name][row]) for name in names if name in chunk.columns}
    return chunk.place(row), values


def _batches_of_windows(trained: Trained, data: str | Sequence[str], size: int) -> _Shares:
    """Return the batches of new rows, as a `_Shares` function, for a run whose samples are windows of rows. The windows
    are made as in the run. `data`: paths, globs or URLs. `size`: windows per batch."""
    plan = trained.plan
    table, title = table_of([data] if isinstance(data, str) else data, plan.data.source)
    try:
        whole = {DATA: RowRange(0, table.num_rows)}
        cut = arrange_rows(whole, plan.data.window, row_order(table, plan.data.window))[DATA]
        readers = tuple(
            make_field_reader(trained.fields[name], table, plan.data.window) for name in _fields_read(trained)
        )
        prepared = prepare(DATA, table, *cut, readers)
    except SourceError as error:
        raise InputError(str(error)) from None
    except BadSampleError as error:
        raise InputError(f"{table.place(error.row)}: {error}") from None
    except ValueError as error:
        raise InputError(f"{title}: {error}") from None
    if not prepared.num_samples:
        assert plan.data.window is not None
        raise InputError(f"{title} has no {plan.data.window.length} rows that follow each other")
    named = replace(plan.data, sets=(*plan.data.sets, SetSpec(DATA, prepared.num_samples)))
    batches = EvaluationBatches(named, DATA, {DATA: of_prepared(prepared)}, batch_size=size)
    return partial(_with_origins, batches, prepared)


def _python(value: Any) -> object:
    if hasattr(value, "as_py"):
        value = value.as_py()
    if isinstance(value, np.datetime64):  # `item()` would return nanoseconds as a number
        return str(value).removesuffix(".000000000").removesuffix("T00:00:00")
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value - value != 0:
        return None
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
