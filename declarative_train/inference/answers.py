"""Predictions as named columns: class names and probabilities, numbers in the unit of the table, or the unconverted
outputs of graph nodes.

In shapes, N is the number of rows and C the number of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from declarative_train.inference.trained import Trained, UsageError
from declarative_train.plan.output_semantics import Meaning, meanings

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, "np.ndarray | list[str]"]
"""Columns by name: numbers (N,) or (N, K), or N strings."""


@dataclass(frozen=True, slots=True)
class PredictedOutputs:
    """Choice of the outputs of a model that are predicted. `outputs`: their names. `meanings`: what each output that is
    converted to columns predicts, such as a class or a number. `as_they_are`: names of the outputs that are not
    converted."""

    outputs: tuple[str, ...]
    meanings: tuple[Meaning, ...]
    as_they_are: tuple[str, ...] = ()


def choose_outputs(trained: Trained, outputs: Sequence[str]) -> PredictedOutputs:
    """Return the outputs to predict: the nodes in `outputs`, whose values are returned unchanged. If `outputs` is
    empty, return all outputs to which the losses give a meaning, such as a class or a number. Raises UsageError if
    there are none."""
    if outputs:
        return PredictedOutputs(tuple(dict.fromkeys(outputs)), (), tuple(dict.fromkeys(outputs)))
    found = meanings(trained.plan)
    if not found:
        types = ", ".join(dict.fromkeys(f"`{term.component['type']}`" for term in trained.plan.objective.terms))
        layers = [node.name for node in trained.plan.graph.nodes if node.kind != "expression"]
        known = [name for name in trained.outputs if "." not in name]
        shown = ", ".join(known[:8]) + (", ..." if len(known) > 8 else "")
        raise UsageError(
            f"the losses of {trained.name} ({types}) do not define the meaning of an output; help: give nodes to "
            f"return unchanged, as in `--output {(layers or known)[-1]}`; known: {shown}"
        )
    return PredictedOutputs(tuple(dict.fromkeys(one.output for one in found)), found)


def columns(asked: PredictedOutputs, values: Mapping[str, torch.Tensor]) -> Columns:
    """Return the columns of predictions for one batch. `asked`: the outputs to predict. `values`: their tensors by
    name.

    Columns of numbers, and of several yes/no values, have the names of the target's columns. A class is in the column
    `class`, or `class_<target>` if several targets have classes. Names of probabilities begin with `p`."""
    found: Columns = {name: _numpy(values[name]) for name in asked.as_they_are}
    alone = sum(bool(one.classes) for one in asked.meanings) == 1
    for one in asked.meanings:
        output = values[one.output] if values[one.output].dtype == torch.float64 else values[one.output].float()
        if one.kind == "class":
            made = _classes(one, output, "" if alone else f"_{one.name}")
        elif one.kind == "yes_no":
            made = _yes_no(one, output, "" if alone else f"_{one.name}")
        else:
            made = _numbers(one, output)
        for name, column in made.items():
            found[f"{name}_{one.term}" if name in found else name] = column
    return found


def probabilities(one: Meaning, output: torch.Tensor) -> torch.Tensor:
    """Return the probabilities that an output predicts: (N, *items, C) for classes, (N, *items) for yes/no values."""
    if one.kind == "yes_no":
        return output.sigmoid()
    return output.movedim(one.class_axis + 1, -1).softmax(-1)


def in_unit(one: Meaning, output: torch.Tensor) -> torch.Tensor:
    """Return an output as float64 in the unit of the target's columns: normalisation is undone, and logarithms of
    counts become counts. `output`: (N, *items), one or several values for each of N rows. `one`: the meaning of the
    output."""
    found = output.double().exp() if one.kind == "count" else output.double()
    if one.unit is None:
        return found
    shape = one.items if len(one.unit.add) > 1 else ()
    multiply, add = (torch.tensor(part, dtype=torch.float64).reshape(shape) for part in one.unit)
    return found * multiply.to(found.device) + add.to(found.device)


def _classes(one: Meaning, output: torch.Tensor, of: str) -> Columns:
    p = probabilities(one, output)
    chosen = _numpy(p.argmax(-1))
    if one.items:  # several items, each with a class: only the highest probability of each
        names = np.asarray(one.classes, object)[chosen.reshape(len(chosen), -1)]
        return {f"class{of}": names, f"p{of}": _numpy(p.amax(-1))}
    each = _numpy(p)
    found: Columns = {f"class{of}": [one.classes[number] for number in chosen.tolist()]}
    return found | {f"p{of}_{name}": each[:, number] for number, name in enumerate(one.classes)}


def _yes_no(one: Meaning, output: torch.Tensor, of: str) -> Columns:
    p = _numpy(probabilities(one, output)).reshape(len(output), -1)
    names = one.columns if len(one.columns) == p.shape[1] else (one.name,)
    if one.classes and len(names) == 1 and p.shape[1] == 1:
        chosen = [one.classes[int(each)] for each in (p[:, 0] > 0.5).tolist()]
        return {f"class{of}": chosen, f"p{of}_{one.classes[1]}": p[:, 0]}
    if len(names) == p.shape[1]:
        answers: Columns = {name: (p[:, at] > 0.5).astype(np.int64) for at, name in enumerate(names)}
        return answers | {f"p_{name}": p[:, at] for at, name in enumerate(names)}
    return {one.name: (p > 0.5).astype(np.int64), f"p_{one.name}": p}


def _numbers(one: Meaning, output: torch.Tensor) -> Columns:
    made = _numpy(in_unit(one, output))
    flat = made.reshape(len(made), -1)
    if len(one.columns) == flat.shape[1]:
        return {name: flat[:, at] for at, name in enumerate(one.columns)}
    return {one.name: made}


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    return np.asarray((tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).cpu().numpy())


def to_arrow(found: Columns) -> pa.Table:
    """Return the columns as an Arrow table. Arrays (N, ...) become columns of fixed-length lists; lists of strings
    become columns of text."""
    import pyarrow as pa

    return pa.table({name: _array(values) for name, values in found.items()})


def _array(values: np.ndarray | list[str]) -> pa.Array:
    import pyarrow as pa

    if isinstance(values, list):
        return pa.array(values, pa.string())
    if values.ndim == 1:
        return pa.array(values)
    flat = values.reshape(len(values), -1)
    kind = pa.string() if values.dtype == object else None
    return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel(), kind), flat.shape[1])


def flatten_lists(table: pa.Table) -> pa.Table:
    """Return a table without list columns, for csv. A column `mu` of lists of two numbers becomes the columns `mu_0`
    and `mu_1`."""
    import pyarrow as pa

    names: list[str] = []
    arrays: list[pa.Array] = []
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if not pa.types.is_fixed_size_list(column.type):
            names, arrays = [*names, name], [*arrays, column]
            continue
        if isinstance(column, pa.ChunkedArray):
            column = pa.concat_arrays(column.chunks)
        size = column.type.list_size
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), size)
        names += [f"{name}_{at}" for at in range(size)]
        arrays += [pa.array(values[:, at]) for at in range(size)]
    return pa.table(dict(zip(names, arrays, strict=True)))
