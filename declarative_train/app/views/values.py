"""Values of samples, as text: the values in the file and the fields made from them. For a trained model, also the
output of each node for one sample, the prediction and the target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from declarative_train.app.views.data_flow import holder
from declarative_train.app.views.first_step import part_places
from declarative_train.app.views.graph import kind
from declarative_train.app.views.table import fit_lines, table
from declarative_train.components.fields import FIELDS
from declarative_train.core.amounts import format_count
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.data.split_rows import TRAINING
from declarative_train.graph.graph import Node
from declarative_train.plan.plan import Plan, TermPlan

if TYPE_CHECKING:
    from declarative_train.inference.trained import Trained

MOST_NUMBERS = 6  # shown numbers of a tensor
MOST_COLUMNS = 4  # shown columns of a field
LONGEST_WORD = 24  # longer words (rows of signs, addresses) are broken in a narrow terminal
SAMPLES = 3


def first_rows(data: DataSpec, width: int | None) -> str:
    """Return the first training samples as text. For each field it shows the values of its columns, how they are
    converted, and the result. Raises DataError, SourceError and BadSampleError."""
    training = prepare_sets(data)[TRAINING]
    samples = np.arange(min(SAMPLES, training.num_samples))
    made = training.gather(samples)
    parts = [f"values of the first {format_count(len(samples), 'training sample')}"]
    for sample in samples.tolist():
        rows = list(_field_rows(data, training, sample, {name: each[sample] for name, each in made.items()}))
        parts.append(f"{_place(training, sample)}\n\n{_fields_table(rows, width)}")
    return "\n\n".join(parts)


def trace_values(trained: Trained, width: int | None) -> str:
    """Return the values of one sample as text, from its row through each node of the trained model to the prediction.
    If possible, the sample was not used for training. Raises the errors of `first_rows`, and CheckpointFailure."""
    import torch

    from declarative_train.inference.trained import check_source

    plan = trained.plan
    name = next((each.name for each in plan.data.sets if each.name != TRAINING), TRAINING)
    check_source(trained, name)
    sets = prepare_sets(plan.data)
    chosen = sets[name]
    made = {field: values[0] for field, values in chosen.gather(np.arange(1)).items()}
    nodes = [*plan.batch_graph.nodes, *plan.graph.nodes]
    network = trained.network([node.name for node in nodes], keep_quantized=True)
    given = [torch.from_numpy(np.ascontiguousarray(made[field])[None]) for field in network.inputs]
    given = [
        each.to(getattr(torch, network.graph.inputs[field].dtype))
        for each, field in zip(given, network.inputs, strict=True)
    ]
    with torch.no_grad():
        found = dict(zip(network.outputs, (each[0].float().numpy() for each in network.module(*given)), strict=True))
    header: tuple[str, ...] = ("node", "type", "shape", "gives")
    rows: list[tuple[str, ...]] = [
        (node.name, kind(node), _shape(found[node.name]), format_values(found[node.name])) for node in nodes
    ]
    if plan.layout.num_devices > 1:  # an evaluation of the run divides the nodes over them
        header = (*header, "where")
        rows = [(*row, _where(plan, node)) for row, node in zip(rows, nodes, strict=True)]
    values = made | found
    parts = [
        f"one row through {trained.name}:\nthe first of {name}, {_place(chosen, 0)}",
        _fields_table(list(_field_rows(plan.data, chosen, 0, made)), width),
        table(header, rows, width=width),
        "\n".join(_predictions(trained, values)),
    ]
    if plan.batch.data_parallel_size > 1 and not plan.layout.scatters:
        parts += _divide_rows(trained, chosen, width)
    return "\n\n".join(part for part in parts if part)


def _where(plan: Plan, node: Node) -> str:
    """Return the devices of a run that compute a node, as text; for a block, those of all nodes in it."""
    pipeline = plan.layout.pipeline
    if plan.layout.scatters:
        return "device 0"
    if any(each.name == node.name for each in plan.batch_graph.nodes):
        return "every rank"
    if pipeline is None or any(node.name in names for names in pipeline.stages):
        return holder(plan, node)
    stages = [
        index for index, names in enumerate(pipeline.stages) if any(each.startswith(f"{node.name}.") for each in names)
    ]
    return f"stages {stages[0]} .. {stages[-1]}" if len(stages) > 1 else f"stage {stages[0]}"


def _divide_rows(trained: Trained, chosen: PreparedSet, width: int | None) -> list[str]:
    """Return the lines of a table that shows how an evaluation of the set `chosen` is divided over ranks: for each
    of the first rows, the rank that gets it, the output of the model, and the prediction. The first line is a title.
    `width`: characters in a line; None: any number."""
    import torch

    plan = trained.plan
    terms = [term for term in plan.objective.terms if term.target is not None]
    places = part_places(plan)
    count = min(2 * len(places), chosen.num_samples)
    if not terms or not count:
        return []
    made = chosen.gather(np.arange(count))
    outputs = list(
        dict.fromkeys(name for term in terms for name in (term.input, term.target) if name and name not in made)
    )
    network = trained.network(outputs, keep_quantized=True)
    given = [
        torch.from_numpy(np.ascontiguousarray(made[field])).to(getattr(torch, network.graph.inputs[field].dtype))
        for field in network.inputs
    ]
    per = -(-count // len(places))
    with torch.no_grad():
        slices = [network.module(*(each[at : at + per] for each in given)) for at in range(0, count, per)]
    joined = (torch.cat(parts).float().numpy() for parts in zip(*slices, strict=True))
    values = made | dict(zip(network.outputs, joined, strict=True))
    rows = [
        (places[row // per], str(row + 1), format_values(values[term.input][row]),
         _prediction(trained, term, values[term.input][row], values[term.target or ""][row]))
        for term in terms[:1]
        for row in range(count)
    ]  # fmt: skip
    title = "an evaluation divides rows over the ranks and combines what they give, in the order of the rows"
    return [
        fit_lines(title, width),
        table(("where", "row", terms[0].input, "prediction"), rows, right=(1,), width=width),
    ]


def _place(chosen: PreparedSet, sample: int) -> str:
    return chosen.table.place(_row(chosen, sample))


def _row(chosen: PreparedSet, sample: int) -> int:
    """Return the index in the table of the row from which a sample is made; for a window, of its first row. `chosen`:
    the set that has the sample. `sample`: index of the sample in this set."""
    places = np.asarray([sample])
    if chosen.windows is not None:
        places = chosen.windows.starts(places)
    return int(chosen.rows.at(places)[0])


def _field_rows(
    data: DataSpec, chosen: PreparedSet, sample: int, made: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, str, str]]:
    """Yield, for each field, four texts about one sample: name, values of the field's columns, conversion, result.
    `chosen`: the set that has the sample. `sample`: index of the sample in the set. `made`: {field: converted
    values}."""
    row = np.asarray([_row(chosen, sample)])
    known = {field.name for field in data.fields}
    for field in data.fields:
        whole, _, output = field.name.rpartition(".")
        if whole in known and field.component.get("output") == output:
            yield (
                field.name,
                f"as {whole}",
                _how(field),
                f"{_shape(made[field.name])} {format_values(made[field.name])}",
            )
            continue
        shown = [name for name in field.columns if name in chosen.table.columns][:MOST_COLUMNS]
        read = chosen.table.read(shown, row)
        words = ", ".join(f"{name} {_raw(read[name][0])}" for name in shown)
        more = f" and {len(field.columns) - len(shown)} more" if len(field.columns) > len(shown) else ""
        yield field.name, words + more, _how(field), f"{_shape(made[field.name])} {format_values(made[field.name])}"


def _fields_table(rows: Sequence[tuple[str, str, str, str]], width: int | None) -> str:
    return table(("field", "in the file", "read as", "becomes"), rows, width=width, longest_word=LONGEST_WORD)


def _how(field: FieldSpec) -> str:
    """Return the type of a field as text, then its keys that change how values are converted, such as `scale`."""
    said = FIELDS.read(field.component).as_data(defaults=False)
    keys = [f"{key} {said[key]}" for key in ("missing", "scale", "normalize", "unknown") if key in said]
    return ", ".join([str(field.component["type"]), *keys])


def _raw(value: Any) -> str:
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return "(missing)"
    if isinstance(value, bytes):
        return f"a file of {format_count(len(value), 'byte')}"
    if isinstance(value, np.ndarray) and value.ndim:
        return format_values(value)
    return (
        f"{value:g}" if isinstance(value, float | np.floating) else " ".join(str(value).split())
    )  # an integer keeps all digits, because it may be an id


def _shape(values: np.ndarray) -> str:
    return f"({', '.join(map(str, values.shape))})"


def format_values(values: np.ndarray) -> str:
    """Return the first MOST_NUMBERS values of an array as text, in row-major order."""
    flat = np.ravel(values)
    shown = " ".join(f"{value:.4g}" if type(value) is float else f"{value:d}" for value in flat[:MOST_NUMBERS].tolist())
    return shown + (" ..." if flat.size > MOST_NUMBERS else "")


def _predictions(trained: Trained, values: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield a line with prediction and target for each loss term that has a target. `values`: outputs and fields of one
    sample by name."""
    for term in trained.plan.objective.terms:
        if term.target is None or term.input not in values or term.target not in values:
            continue
        said, right = values[term.input], values[term.target]
        yield f"{term.name}: {_prediction(trained, term, said, right)}"


def _prediction(trained: Trained, term: TermPlan, said: np.ndarray, right: np.ndarray) -> str:
    kind_of_loss = term.component["type"]
    names = trained.class_names(term.target or "") if term.target in trained.fields else None
    if kind_of_loss == "cross_entropy" and said.ndim == 1 and right.ndim == 0:
        shares = np.exp(said - said.max()) / np.exp(said - said.max()).sum()
        best = int(said.argmax())
        return (
            f"predicted {_class(best, names)} with probability {shares[best]:.3f}; target {_class(int(right), names)}"
        )
    if kind_of_loss == "bce_with_logits":
        return (
            f"predicted true with probability {format_values(1 / (1 + np.exp(-said)))}; target {format_values(right)}"
        )
    unit = trained.unit(term.target or "") if term.target in trained.fields else None
    if unit is not None and said.shape == right.shape:
        back = [each * np.asarray(unit.multiply) + np.asarray(unit.add) for each in (said, right)]
        return f"predicted {format_values(back[0])}; target {format_values(back[1])}, in the unit of the column"
    return f"predicted {format_values(said)}; target {format_values(right)}"


def _class(number: int, names: Sequence[str] | None) -> str:
    return f"class {number}" if names is None or number >= len(names) else f"{number} (`{names[number]}`)"
