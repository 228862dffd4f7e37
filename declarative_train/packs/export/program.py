"""Program to export: one module that computes outputs from the values of a table's columns, in the unit of the target.

raw       inputs are numbers as in the table: the module fills missing ones, scales and normalises with the run's
          statistics, and converts outputs to the unit of the target's columns. The user converts words to class numbers
prepared  inputs are fields as in the run's batches; outputs are not converted
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import fx, nn

from declarative_train.components.data import Preparation
from declarative_train.components.fields import FIELDS
from declarative_train.graph.module_names import for_tools
from declarative_train.inference.answers import choose_outputs
from declarative_train.inference.trained import Trained
from declarative_train.packs.export.export_errors import blame_node
from declarative_train.plan.output_semantics import Meaning, meanings

if TYPE_CHECKING:
    from declarative_train.data.spec import FieldSpec
    from declarative_train.plan.plan import PublishedPlan

Inputs = Literal["raw", "prepared"]
SEED = 20_261  # seed of the made-up rows
_REACH = 2.0  # made-up numbers differ from the mean by at most so many standard deviations


@dataclass(frozen=True)
class ProgramInput:
    """Input of an exported program, made from the field `spec`. `dtype`: dtype of the tensor that the program accepts.
    `preparation`: steps with which the program turns numbers of the columns into values of the field; empty if the
    input must already have these values."""

    spec: FieldSpec
    dtype: torch.dtype
    shape: tuple[int, ...]
    preparation: Preparation

    @property
    def name(self) -> str:
        return self.spec.name


@dataclass(frozen=True)
class ProgramOutput:
    """Output of an exported program. `meanings`: what its numbers mean (scores, classes, ...), for each loss that reads
    it. `unit`: the program converts the output to the unit of this meaning; None: no conversion."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    meanings: tuple[Meaning, ...]
    unit: Meaning | None


@dataclass(frozen=True)
class Base:
    """Published model with which training began. `path`: a folder, or the hub id of a cached model."""

    plan: PublishedPlan
    path: str
    ties: frozenset[str]


@dataclass(frozen=True)
class Program:
    """Program to export. `module` accepts a tensor (B, *shape) for each input, by position or by name, and returns a
    tuple of the outputs. `network`: the trained part of `module`. `drawn`: names of outputs that are random."""

    module: fx.GraphModule
    network: nn.Module
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]
    kind: Inputs
    dtype: torch.dtype
    drawn: frozenset[str] = frozenset()
    learned: frozenset[str] = frozenset()  # names of trained parameters, if the whole model is exported
    base: Base | None = None  # published model to which the adapters belong

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def arguments(self, rows: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(rows[entry.name] for entry in self.inputs)

    def rows(self, count: int) -> dict[str, torch.Tensor]:
        """Return `count` made-up rows with values in the range of the run's data. (Real rows must not be published with
        the model.)"""
        generator = np.random.default_rng(SEED)
        return {entry.name: _draw_rows(entry, count, generator) for entry in self.inputs}

    def answers(self, rows: Mapping[str, torch.Tensor], seed: int = 0) -> dict[str, torch.Tensor]:
        """Run the program on `rows`, and return {name of an output: tensor}. `seed`: seed of random outputs."""
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            found = self.module(*self.arguments(rows))
        return {answer.name: tensor for answer, tensor in zip(self.outputs, found, strict=True)}


class Prepare(nn.Module):
    """Layer that converts numbers (B, ...) of any floating dtype, nan if missing, to the values of a field, as
    `TensorField.convert` does. It computes in float64 and returns a tensor of its `dtype`."""

    def __init__(self, preparation: Preparation, row: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.scale = dtype, preparation.scale
        self.fill: torch.Tensor | None
        self.subtract: torch.Tensor
        self.divide: torch.Tensor
        self.is_normalised = preparation.subtract is not None
        for name in ("fill", "subtract", "divide"):
            self.register_buffer(name, _as_row(getattr(preparation, name), row), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill, x)
        if self.scale is not None:
            x = x * self.scale
        if self.is_normalised:
            x = (x - self.subtract) / self.divide
        return x.to(self.dtype)


class ToUnit(nn.Module):
    """Layer that converts an output (B, *items) to the unit of its target's columns. For a target that counts
    something, the model's output is the logarithm of the count; this layer returns the count."""

    def __init__(self, meaning: Meaning, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.is_logarithm = dtype, meaning.kind == "count"
        unit = meaning.unit
        items = meaning.items if unit is not None and len(unit.add) > 1 else ()
        self.has_unit = unit is not None
        self.multiply: torch.Tensor
        self.add: torch.Tensor
        self.register_buffer("multiply", None if unit is None else _as_row(unit.multiply, items), persistent=False)
        self.register_buffer("add", None if unit is None else _as_row(unit.add, items), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.double()
        if self.is_logarithm:
            x = x.exp()
        if self.has_unit:
            x = x * self.multiply + self.add
        return x.to(self.dtype)


def _as_row(numbers: Sequence[float] | None, row: tuple[int, ...]) -> torch.Tensor | None:
    if numbers is None:
        return None
    found = torch.tensor(tuple(numbers), dtype=torch.float64)
    return found.reshape(row if len(numbers) > 1 else ())


def make_program(
    trained: Trained, outputs: Sequence[str], *, kind: Inputs = "raw", dtype: torch.dtype | None = None
) -> Program:
    """Build a program that computes the nodes `outputs`. If `outputs` is empty, it computes those outputs whose meaning
    (scores, classes, ...) follows from a loss. `kind`: whether its inputs are raw values of the table or prepared
    fields. `dtype`: dtype of weights and computation, default that of the training. Raises UsageError and
    CheckpointFailure."""
    names = choose_outputs(trained, outputs).outputs
    network = trained.network(names)
    own = torch.float64 if trained.plan.training.precision == "fp64" else torch.float32
    dtype = own if dtype is None else dtype
    if dtype != own:
        network.module.to(dtype)
    said = meanings(trained.plan)
    inputs = tuple(_entry(trained.fields[name], kind, dtype) for name in network.inputs)
    answers = tuple(_answer(name, tuple(one for one in said if one.output == name), kind) for name in names)
    module = _assemble(network.module, inputs, answers, dtype)
    program = Program(module, network.module, inputs, answers, kind, dtype)
    return _try_out(program)


def _entry(spec: FieldSpec, kind: Inputs, dtype: torch.dtype) -> ProgramInput:
    """Return the program's input for a field. `kind`: whether inputs are raw or prepared. `dtype`: dtype of the
    program. A raw input that the program normalises has the dtype float64, because float32 would lose the digits of
    numbers with a large mean and a small deviation."""
    tensor = spec.tensor
    if not tensor.is_floating:
        return ProgramInput(spec, getattr(torch, tensor.dtype), tensor.shape, Preparation())
    if kind == "prepared":
        return ProgramInput(spec, dtype, tensor.shape, Preparation())
    preparation = FIELDS.read(spec.component).preparation(spec.statistics)
    taken = torch.float64 if preparation.subtract is not None or dtype == torch.float64 else torch.float32
    return ProgramInput(spec, taken, tensor.shape, preparation)


def _answer(name: str, said: tuple[Meaning, ...], kind: Inputs) -> ProgramOutput:
    """Return the description of a node's output in the exported program. `said`: for each loss that reads the output,
    what its numbers mean. With `kind` "raw", the program will convert numbers and counts to the unit of the target,
    unless the losses have different units."""
    units = {(one.kind == "count", one.unit) for one in said if one.unit is not None or one.kind == "count"}
    is_one = kind == "raw" and len(units) == 1 and all(one.kind in ("number", "count") for one in said)
    unit = next((one for one in said if one.unit is not None or one.kind == "count"), None) if is_one else None
    return ProgramOutput(name, torch.float32, (), said, unit)


def _assemble(
    network: fx.GraphModule, inputs: Sequence[ProgramInput], answers: Sequence[ProgramOutput], dtype: torch.dtype
) -> fx.GraphModule:
    """Return a module that prepares `inputs`, runs `network`, and converts its outputs, described by `answers`, to
    their units. Its arguments have the same names as those of `network`."""
    root = nn.Module()
    root.add_module("network", for_tools(network))
    lines = fx.Graph()
    arguments = [node.name for node in network.graph.nodes if node.op == "placeholder"]
    values = [lines.placeholder(argument) for argument in arguments]
    for at, entry in enumerate(inputs):
        if entry.spec.tensor.is_floating and (entry.preparation != Preparation() or entry.dtype != dtype):
            row = entry.shape[len(entry.shape) - _row_dims(entry) :]
            root.add_module(f"prepare_{at}", Prepare(entry.preparation, row, dtype))
            values[at] = lines.call_module(f"prepare_{at}", (values[at],))
    found = lines.call_module("network", tuple(values))
    results = []
    for at, answer in enumerate(answers):
        result = lines.call_function(_item, (found, at))
        if answer.unit is not None:
            root.add_module(f"unit_{at}", ToUnit(answer.unit, dtype))
            result = lines.call_module(f"unit_{at}", (result,))
        results.append(result)
    lines.output(tuple(results))
    return fx.GraphModule(root, lines, class_name="Model").eval()


def _item(values: Sequence[torch.Tensor], at: int) -> torch.Tensor:
    return values[at]


def _row_dims(entry: ProgramInput) -> int:
    """Return how many dimensions a single row of an input has. In an input that is a window of several rows, the
    dimension that counts the rows comes before them and is not included."""
    made = entry.preparation
    numbers = max(len(each) for each in (made.fill, made.subtract, made.divide, (0.0,)) if each is not None)
    dims, size = 0, 1
    for length in reversed(entry.shape):
        if size >= numbers:
            break
        dims, size = dims + 1, size * length
    return dims


def _try_out(program: Program) -> Program:
    """Run the program on made-up rows. Return a copy of it that has the shapes and dtypes of its outputs, as found in
    this run, and the names of the outputs that are random."""
    rows = program.rows(3)
    with blame_node(program.module, program.arguments(rows), f"computed in {program.precision}"):
        first, second = program.answers(rows, 1), program.answers(rows, 2)
    outputs = tuple(
        ProgramOutput(each.name, first[each.name].dtype, tuple(first[each.name].shape[1:]), each.meanings, each.unit)
        for each in program.outputs
    )
    drawn = frozenset(name for name, tensor in first.items() if not torch.equal(tensor, second[name]))
    return Program(program.module, program.network, program.inputs, outputs, program.kind, program.dtype, drawn)


def _draw_rows(entry: ProgramInput, count: int, generator: np.random.Generator) -> torch.Tensor:
    shape = (count, *entry.shape)
    tensor = entry.spec.tensor
    if tensor.dtype == "bool":
        return torch.from_numpy(generator.random(shape) < 0.5)
    intervals = tensor.intervals or ((0.0, 1.0),)
    low, high = (np.array(ends, np.float64) for ends in zip(*intervals, strict=True))
    if not tensor.is_floating:
        return torch.from_numpy(np.floor(low + generator.random(shape) * (high - low + 1))).to(entry.dtype)
    if entry.preparation.subtract is None:
        values = generator.standard_normal(shape)
        if tensor.intervals:
            values = low + generator.random(shape) * (high - low)
        return torch.from_numpy(values / (entry.preparation.scale or 1.0)).to(entry.dtype)
    row = entry.shape[len(entry.shape) - _row_dims(entry) :]
    subtract, divide = (_as_row(each, row) for each in entry.preparation[2:])
    assert subtract is not None
    assert divide is not None
    spread = torch.from_numpy(np.clip(generator.standard_normal(shape), -_REACH, _REACH))
    return ((spread * divide + subtract) / (entry.preparation.scale or 1.0)).to(entry.dtype)
