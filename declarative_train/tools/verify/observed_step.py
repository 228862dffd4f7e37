"""Training step of a verification. A single process runs it and writes its values to files. Then the ranks of the
requested mode run the same step, and compare their values with the files.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.data.order import locate
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.collectives import finish_together
from declarative_train.engine.devices import device_of
from declarative_train.engine.engine import Engine, get_process_batch
from declarative_train.graph.initialise import has_module
from declarative_train.run.rank import torch_settings
from declarative_train.run.step_schedule import StepSchedule
from declarative_train.tools.verify.deviation import Deviation, deviate
from declarative_train.tools.verify.prepare import layer_nodes
from declarative_train.tools.verify.step_files import ParameterRecord, StepFiles, StepIndex, parts_of

if TYPE_CHECKING:
    from declarative_train.data.batch import Batch
    from declarative_train.engine.engine import StepResult
    from declarative_train.engine.observer import StepPart
    from declarative_train.plan.plan import Plan
    from declarative_train.run.rank import FailureContext
    from declarative_train.run.rank_job import RankJob

NUM_SUMS = 4  # sums of a sample's output (`summarise_samples`)
_ALIVE: list[object] = []  # engines are never freed, as in a run


@dataclass(slots=True)
class RankReport:
    """Differences between the step of one rank and the step of one process.

    samples                    dict from a row's index in the global batch to its sample's index in the set
    counts, sums               items of each loss term, and this rank's sum; [] if the rank has no loss
    norm                       norm of all gradients together, as this rank computed it
    nodes                      dict from the path of a layer to (largest relative difference of a row of its output,
                               index of this row in the global batch)
    start, gradients, updates  deviations by parameter; None for a gradient that the rank does not have
    statistics                 deviations by running statistic
    """

    rank: int
    dp_rank: int
    samples: dict[int, int] = field(default_factory=dict)
    counts: list[float] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    norm: float | None = None
    nodes: dict[str, tuple[float, int]] = field(default_factory=dict)
    start: dict[str, Deviation] = field(default_factory=dict)
    gradients: dict[str, Deviation | None] = field(default_factory=dict)
    updates: dict[str, Deviation] = field(default_factory=dict)
    statistics: dict[str, Deviation] = field(default_factory=dict)


def record_step(folder: Path, step: int, job: RankJob, context: FailureContext, asked: Callable[[], bool]) -> int:
    """Run step number `step` in one process, write its outputs, gradients and parameters to files in `folder`, for
    `compare_step`, and return the exit code 0. `job`: the plan to run and its settings. `context`: facts for the report
    of a failure. `asked` is not used; it is an argument of every function `RankJob.work`."""
    with torch_settings(job.plan, device := _device(job, context)):
        _run(job, context, step, lambda engine, batches: Recorder(folder, engine, batches), device)
    return 0


def compare_step(
    folder: Path, reports: Path, step: int, job: RankJob, context: FailureContext, asked: Callable[[], bool]
) -> int:
    """Run step number `step` as one rank of the mode that `dtrain verify` checks. Compare its outputs, gradients and
    parameters with those that `record_step` wrote to `folder`, and write a report to the folder `reports`. Return the
    exit code. The other arguments are those of `run_rank` in `run/rank.py`.
    """
    with torch_settings(job.plan, device := _device(job, context)):

        def make(engine: Engine, batches: Sequence[Batch]) -> Comparer:
            return Comparer(folder, engine, batches, context.rank)

        found = _run(job, context, step, make, device)
        (reports / str(context.rank)).write_bytes(pickle.dumps(found.report))
        if not job.plan.layout.is_one_process:
            finish_together(device)
    return 0


def _device(job: RankJob, context: FailureContext) -> torch.device:
    return device_of(job.plan.layout.ranks[context.rank], job.device_kind, job.device_index)


def _run(
    job: RankJob, context: FailureContext, step: int, make: Callable[[Engine, list[Batch]], Any], device: torch.device
) -> Any:
    plan = job.plan
    context.step = step
    engine = Engine(replace(plan, weights=job.place.weights), device)
    _ALIVE.append(engine)
    _stop_draws(engine)
    sets = open_sets(plan.data)
    batches = TrainingBatches(plan.data, get_process_batch(plan), engine.dp_rank, sets, device=device).step(step)
    num_rows = locate(step, plan.batch, plan.data.set("training").num_samples).size
    observer = make(engine, batches)
    lr_factor = StepSchedule(plan, plan.training.num_steps).at(step).lr_factor
    with NoDraws() if plan.draws else nullcontext():
        result = engine.step(step, batches, num_rows=num_rows, lr_factor=lr_factor, measure=True, observer=observer)
    observer.finish(result)
    return observer


def _stop_draws(engine: Engine) -> None:
    """Switch layers that draw random numbers, such as dropout, to evaluation mode, because their random numbers depend
    on the layout."""
    for path in engine.plan.draws:
        for module in engine.modules:
            if has_module(module, path):
                module.get_submodule(path).eval()


class NoDraws(TorchFunctionMode):
    """Context in which the random functions of expressions return the mean of their distribution instead of random
    numbers."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        means = {torch.rand_like: 0.5, torch.randn_like: 0.0}
        if func in means:
            return torch.full_like(args[0], means[func], **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Observer:
    """Observer of one training step. Hooks on layers record their outputs in the forward. They record nothing when
    activation checkpointing repeats the forward."""

    def __init__(self, folder: Path, engine: Engine, batches: Sequence[Batch]) -> None:
        self.files, self.engine, self.plan = StepFiles(folder), engine, engine.plan
        self.names = {item.name: number for number, item in enumerate(self.plan.parameters)}
        self.paths = {path: number for number, (path, _) in enumerate(layer_nodes(self.plan.graph))}
        self._batches, self._is_forward = batches, False
        self._calls: dict[tuple[int, str], int] = {}
        self._positions = list(positions_of(self.plan, engine.dp_rank, batches))
        self.samples = {
            position: int(sample)
            for positions, batch in zip(self._positions, batches, strict=True)
            for position, sample in zip(positions, batch.sample_ids, strict=True)
        }
        if not self.plan.training.compile and self.plan.data.on_bad_row != "skip":
            replicas = engine.modules if self.plan.layout.scatters else [engine.model]
            for number, module in enumerate(replicas):
                self._hook(number, module)

    def _hook(self, replica: int, module: nn.Module) -> None:
        def take(path: str, inputs: Any, output: Any) -> None:
            if self._is_forward and isinstance(output, torch.Tensor) and output.is_floating_point() and output.dim():
                chunk = self._calls.get((replica, path), 0)
                self._calls[replica, path] = chunk + 1
                rows = self._rows_of(replica, chunk)
                if len(rows) and len(output) >= len(rows):
                    self.take_output(path, rows, output.detach()[: len(rows)])

        for path in self.paths:
            if has_module(module, path):
                part = module.get_submodule(path)
                part.register_forward_hook(lambda _, inputs, output, path=path: take(path, inputs, output))

    def _rows_of(self, replica: int, chunk: int) -> Sequence[int]:
        """Return the rows of the global batch that one call of the model reads, as indices. Rows of padding are left
        out. `chunk`: index of the call in the step. `replica`: which copy of the model is called; only mode `dp` has
        several copies in a process."""
        if chunk >= len(self._positions):
            return ()
        positions = self._positions[chunk]
        if self.plan.layout.scatters:
            size = self.plan.batch.microbatch_size
            return positions[replica * size : (replica + 1) * size]
        return positions

    def enter(self, part: StepPart, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._is_forward = part in ("chunk", "stage")
        if part == "update":
            self.at_update()

    def take_output(self, path: str, rows: Sequence[int], output: torch.Tensor) -> None:
        raise NotImplementedError

    def at_update(self) -> None:
        raise NotImplementedError

    def gradients(self) -> Mapping[str, torch.Tensor | None]:
        return {name: parameter.grad for name, parameter in self.engine.optimizer.parameters.items()}

    def statistics(self) -> dict[str, torch.Tensor]:
        """Return the running statistics of the model, such as those of batch norms."""
        named = self.engine.model.named_buffers()
        return {
            name: each
            for name, each in named
            if name.rpartition(".")[2].startswith("running_") and each.is_floating_point()
        }

    def totals(self, result: StepResult) -> tuple[list[float], list[float]]:
        """Return (counts, sums), one of each for every loss term. A sum is over the items of this rank. A count is the
        number of items of all ranks, by which the sum is divided."""
        counts = result.counts.tolist() if isinstance(result.counts, torch.Tensor) else list(result.counts)
        sums = [sum(float(value) for value in term) for term in zip(*result.sums, strict=True)]
        return [float(each) for each in counts], sums


class Recorder(_Observer):
    """Observer of the single process. It writes the files with which the ranks compare their step (`step_files.py`)."""

    def __init__(self, folder: Path, engine: Engine, batches: Sequence[Batch]) -> None:
        super().__init__(folder, engine, batches)
        self.index = StepIndex(samples=[self.samples[position] for position in sorted(self.samples)])
        self._held = {}
        for name, parameter in engine.model.named_parameters():
            self._held[name] = parameter
            dtype = str(parameter.dtype).removeprefix("torch.")
            self.index.parameters[name] = ParameterRecord(tuple(parameter.shape), dtype)
            self.files.write("start", self.names[name], parameter)
        self._statistics_before = {name: each.detach().cpu().clone() for name, each in self.statistics().items()}

    def take_output(self, path: str, rows: Sequence[int], output: torch.Tensor) -> None:
        self.index.nodes[path] = tuple(output.shape[1:])
        sums = summarise_samples(output)
        whole = self.files.read("node", self.paths[path], (len(self.samples), NUM_SUMS), torch.float64)
        whole[list(rows)] = sums

    def at_update(self) -> None:
        for name, gradient in self.gradients().items():
            if gradient is not None:
                self.index.parameters[name].gradient = float(gradient.abs().max()) if gradient.numel() else 0.0
                self.files.write("gradient", self.names[name], gradient)

    def finish(self, result: StepResult) -> None:
        for name, parameter in self.engine.optimizer.parameters.items():
            made = self.index.parameters[name]
            start = self.files.read("start", self.names[name], made.shape, parameter.dtype)
            self.files.write("updated", self.names[name], parameter)
            if parameter.numel():
                made.moved = float((parameter.detach().cpu() - start).abs().max())
                made.largest = float(parameter.detach().abs().max())
        for number, (name, each) in enumerate(self.statistics().items()):
            record = ParameterRecord(tuple(each.shape), str(each.dtype).removeprefix("torch."))
            self.files.write("statistic", number, each)
            if each.numel():
                record.moved = float((each.detach().cpu() - self._statistics_before[name]).abs().max())
                record.largest = float(each.detach().abs().max())
            self.index.statistics[name] = record
        self.index.counts, self.index.sums = self.totals(result)
        self.index.norm = 0.0 if result.grad_norm is None else float(result.grad_norm)
        self.files.write_index(self.index)


class Comparer(_Observer):
    """Observer of a rank. It compares the rank's part of a step with the files of a single process that ran the same
    step. After comparing a gradient, it replaces the gradient by that of the single process, so that both compute their
    updates from equal gradients."""

    def __init__(self, folder: Path, engine: Engine, batches: Sequence[Batch], rank: int) -> None:
        super().__init__(folder, engine, batches)
        self.report = RankReport(rank, engine.dp_rank, samples=self.samples)
        self._cuts, self._records = find_cuts(engine.model), self.files.index.parameters
        self._nodes = self.files.index.nodes
        for name, parameter in engine.model.named_parameters():
            if name in self._records:  # a tied copy has no record of its own
                self.report.start[name] = self._compare(name, parameter, "start")

    def _compare(self, name: str, tensor: torch.Tensor, kind: str) -> Deviation:
        return deviate(parts_of(tensor, self._cuts.get(name)), self._read(kind, name))

    def _read(self, kind: str, name: str) -> torch.Tensor:
        record = self._records[name]
        return self.files.read(kind, self.names[name], record.shape, getattr(torch, record.dtype))

    def take_output(self, path: str, rows: Sequence[int], output: torch.Tensor) -> None:
        if self._nodes.get(path) != tuple(output.shape[1:]):  # this rank has a part of the features or tokens
            return
        whole = self.files.read("node", self.paths[path], (len(self.files.index.samples), NUM_SUMS), torch.float64)
        apart = (summarise_samples(output) - whole[list(rows)]).abs().nan_to_num(float("inf"), float("inf")).amax(1)
        size = max(float(whole[:, 0].max()), torch.finfo(torch.float64).tiny)
        worst = int(apart.argmax())
        found = float(apart[worst]) / size, rows[worst]
        self.report.nodes[path] = max(self.report.nodes.get(path, found), found)

    def at_update(self) -> None:
        for name, gradient in self.gradients().items():
            if gradient is None:
                self.report.gradients[name] = None
                continue
            if self._records[name].gradient is None:  # the parameter has no gradient in one process
                nothing = torch.zeros(self._records[name].shape)
                self.report.gradients[name] = deviate(parts_of(gradient, self._cuts.get(name)), nothing)
                continue
            self.report.gradients[name] = self._compare(name, gradient, "gradient")
            self._replace(name, gradient)

    def _replace(self, name: str, gradient: torch.Tensor) -> None:
        whole = self._read("gradient", name)
        with torch.no_grad():
            for values, first in parts_of(gradient, self._cuts.get(name)):
                place = tuple(slice(begin, begin + size) for begin, size in zip(first, values.shape, strict=True))
                values.copy_(whole[place])

    def finish(self, result: StepResult) -> None:
        self.report.counts, self.report.sums = self.totals(result)
        self.report.norm = None if result.grad_norm is None else float(result.grad_norm)
        for name, parameter in self.engine.optimizer.parameters.items():
            self.report.updates[name] = self._compare(name, parameter, "updated")
        mine = self.statistics()
        for number, (name, record) in enumerate(self.files.index.statistics.items()):
            if name in mine:
                whole = self.files.read("statistic", number, record.shape, getattr(torch, record.dtype))
                self.report.statistics[name] = deviate([(mine[name], (0,) * mine[name].dim())], whole)


def positions_of(plan: Plan, dp_rank: int, batches: Sequence[Batch]) -> Iterator[range]:
    """Yield, for each batch of this process, the indices of its rows in the global batch, without padding rows.
    `dp_rank`: the data-parallel rank of this process."""
    batch = get_process_batch(plan)
    size = batch.microbatch_size
    for chunk, each in enumerate(batches):
        first = (chunk * batch.data_parallel_size + dp_rank) * size
        yield range(first, first + each.num_rows)


def summarise_samples(output: torch.Tensor) -> torch.Tensor:
    """Return a tensor (R, 4), float64, with four sums over the output of each of R samples: the sum of absolute values,
    and three sums with fixed random signs. Outputs with equal sums are almost certainly equal."""
    flat = output.detach().reshape(len(output), -1)
    signs = _signs(flat.shape[1])
    found = [torch.cat([row.abs().sum()[None], signs @ row]) for row in (each.cpu().double() for each in flat)]
    return torch.stack(found)


_made: dict[int, torch.Tensor] = {}


def _signs(size: int) -> torch.Tensor:
    """Return a (3, size) tensor of random signs, -1 or 1. It is the same at every call."""
    if size not in _made:
        generator = torch.Generator().manual_seed(size)
        _made[size] = torch.randint(0, 2, (NUM_SUMS - 1, size), generator=generator).double() * 2 - 1
    return _made[size]
