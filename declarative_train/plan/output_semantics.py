"""Meaning of a model's outputs (a class, a yes or no, a number), from the losses and the fields of their targets.

    cross_entropy, nll                  one of several classes: its name, and the probability of each class
    bce_with_logits                     yes or no, once or for each column: an answer and a probability
    mse, l1, huber, smooth_l1           a number, in the unit of the target's columns
    poisson_nll                         the logarithm of a number in the unit of the target's columns

A loss without a target (`mean`), or one that compares distributions (`kl_div`, `info_nce`), defines no meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from declarative_train.components.expressions.functions import VIEWS
from declarative_train.components.expressions.tree import Operation, Reference, Term
from declarative_train.components.losses.shape_checks import class_axis
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.check_targets import unit_of
from declarative_train.graph.graph import Edge, Graph
from declarative_train.graph.read import term_of
from declarative_train.plan.subgraph import whole_graph

if TYPE_CHECKING:
    from declarative_train.components.data import Unit
    from declarative_train.data.spec import FieldSpec
    from declarative_train.plan.plan import Plan, TermPlan

Kind = Literal["class", "yes_no", "number", "count"]
_KINDS: Mapping[str, Kind] = {
    "bce_with_logits": "yes_no",
    "cross_entropy": "class",
    "huber": "number",
    "l1": "number",
    "mse": "number",
    "nll": "class",
    "poisson_nll": "count",
    "smooth_l1": "number",
}
_SAME_VALUES = VIEWS | {"float", "int"}


@dataclass(frozen=True, slots=True)
class Meaning:
    """Meaning of one output of the model.

    term         name of the loss that defines it
    kind         `class`, `yes_no`, `number`, or `count` (the logarithm of a number)
    output       name of the output, as accepted by `prune`
    target       batch entry that the loss compares the output with
    field        field that the target comes from, if values are only reordered or reshaped; else None
    classes      names of the classes, for `class`, and for `yes_no` if the target has two named classes
    class_axis   for `class`: dimension of one sample's output that holds the scores
    columns      columns of one row of the target; () if the numbers of the output do not correspond to columns
    unit         for numbers: conversion of the output to the unit of the columns
    items        shape of the answers for one sample: () for one answer
    ignored      for `class`: target value that does not count (`ignore_index`)
    """

    term: str
    kind: Kind
    output: str
    target: str | None
    mask: str | None
    field: str | None
    classes: tuple[str, ...] = ()
    class_axis: int = 0
    columns: tuple[str, ...] = ()
    unit: Unit | None = None
    items: tuple[int, ...] = ()
    ignored: int | None = None

    @property
    def name(self) -> str:
        """Name of the output, for users: its target column if there is exactly one, else the target's field, else the
        name of the loss."""
        return self.columns[0] if len(self.columns) == 1 else self.field or self.term


def meanings(plan: Plan) -> tuple[Meaning, ...]:
    """Return what each output predicts (a class, a number, ...), in the order of the losses, which determine the
    meaning. Of two losses that compare the same output with the same target, the first one decides."""
    graph = whole_graph(plan)
    found: dict[tuple[str, str | None], Meaning] = {}
    for term in plan.objective.terms:
        made = _meaning(plan, graph, term)
        if made is not None:
            found.setdefault((made.output, made.target), made)
    return tuple(found.values())


def _meaning(plan: Plan, graph: Graph, term: TermPlan) -> Meaning | None:
    fields = {field.name: field for field in plan.data.fields}
    kind = _KINDS.get(str(term.component["type"]))
    if kind is None or term.target is None:
        return None
    output, target = _spec(graph, term.input), _spec(graph, term.target)
    source, is_moved = _field_of(graph, term.target)
    field = None if source is None else fields[source]
    about = (term.name, kind, term.input, term.target, term.mask, source)
    if kind == "class":
        axis = class_axis(output.shape, int(str(term.component.get("class_dim", -1))))
        if axis is None:
            return None
        items = output.shape[:axis] + output.shape[axis + 1 :]
        ignored = term.component.get("ignore_index")
        is_soft = target.is_floating and not (field is not None and field.component.get("one_hot"))
        classes = _parts(field, output.shape[axis]) if is_soft else _classes(plan, field, output.shape[axis])
        if plan.data.source.get("tokenizer") == "bytes" and output.shape[axis] == 256:
            classes = tuple(map(_character, range(256)))
        columns = () if field is None else field.columns
        return Meaning(
            *about, classes, axis, columns, items=items, ignored=ignored if isinstance(ignored, int) else None
        )
    columns = () if field is None or is_moved else _column_of_each(field, output)
    if kind == "yes_no":
        classes = _classes(plan, field, 2) if field is not None and field.component.get("type") == "category" else ()
        return Meaning(*about, classes, 0, columns, items=output.shape)
    unit = None if source is None else unit_of(fields[source])
    if unit is not None and is_moved and len(unit.add) > 1:
        unit = None  # which element belongs to which column is not known any more
    return Meaning(*about, (), 0, columns, unit, output.shape)


def _spec(graph: Graph, name: str) -> TensorSpec:
    return graph.spec(graph.outputs.get(name, name))


def _field_of(graph: Graph, name: str) -> tuple[str | None, bool]:
    """Return (field, is_moved) for a batch entry that consists of the values of one field. `is_moved`: the values are
    reordered or selected. Return (None, False) if the entry is computed from several fields, or if its values differ
    from those of the field."""
    found = _read(graph, graph.outputs.get(name, name))
    return found if found is not None else (None, False)


def _read(graph: Graph, edge: Edge) -> tuple[str, bool] | None:
    name, colon, _ = edge.partition(":")
    if not colon:
        return name, False
    node = graph.node(name)
    root = term_of(node)
    names = {None if root is None else _single_reference(root)}
    if None in names:
        return None
    found = _read(graph, node.inputs[str(names.pop())])
    return None if found is None or root is None else (found[0], found[1] or not _keeps_order(root))


def _single_reference(term: Term) -> str | None:
    """Return the name of the tensor in an expression that only reshapes, permutes or indexes one tensor, or converts
    its dtype. Return None for any other expression."""
    if isinstance(term, Reference):
        return term.text
    if isinstance(term, Operation) and term.name in _SAME_VALUES and len(term.operands) == 1:
        return _single_reference(term.operands[0])
    return None


def _keeps_order(term: Term) -> bool:
    """Return whether the result of an expression has the elements of its tensor in the same order. The expression may
    change the dtype, and add, remove or flatten dimensions."""
    kept = {"float", "int", "pos", "squeeze", "unsqueeze", "flatten"}
    return isinstance(term, Reference) or (
        isinstance(term, Operation) and term.name in kept and all(_keeps_order(each) for each in term.operands)
    )


def _column_of_each(field: FieldSpec, output: TensorSpec) -> tuple[str, ...]:
    return field.columns if len(field.columns) == output.num_elements else ()


def _classes(plan: Plan, field: FieldSpec | None, size: int) -> tuple[str, ...]:
    names = None if field is None else classes_of(plan, field)
    return names if names is not None and len(names) == size else _numbers(size)


def classes_of(plan: Plan, field: FieldSpec) -> tuple[str, ...] | None:
    """Return the names of the classes of a category field, by class number; None for other fields. If the field has
    several columns, they are the classes of the first one."""
    promises = plan.data.source.get("type") in ("synthetic", "text")
    return _class_names(field, is_bool=not promises)


def _class_names(field: FieldSpec, *, is_bool: bool) -> tuple[str, ...] | None:
    """Return the names of the classes of a category field, by class number; None for other fields. They are the values
    of the field's vocabulary, and "unknown" for the class that the key `unknown` names. A class without a value has its
    number as name.

    Without a vocabulary, the names are the class numbers. But they are "false" and "true" if the column contains
    booleans (`is_bool`) and the recipe does not set `num_classes`."""
    size = field.tensor.shape[-1] if field.component.get("one_hot") else field.tensor.num_values
    if field.component.get("type") != "category" or size is None:
        return None
    found = field.statistics.get("vocabulary")
    vocabulary = found[0] if isinstance(found, list) and found else None
    if not isinstance(vocabulary, list) and is_bool and size == 2 and field.component.get("num_classes") is None:
        return ("false", "true")
    if not isinstance(vocabulary, list):
        return tuple(map(str, range(size)))
    names = [str(value) for value in vocabulary]
    unknown = field.component.get("unknown")
    if isinstance(unknown, int):
        names.insert(min(unknown, len(names)), "unknown")
    return tuple((names + [str(number) for number in range(len(names), size)])[:size])


def _parts(field: FieldSpec | None, size: int) -> tuple[str, ...]:
    """Return a name for each of the `size` values of a target such as a distribution over classes: the field's columns
    if there are `size` columns, otherwise `0`, `1`, ..."""
    return field.columns if field is not None and len(field.columns) == size else _numbers(size)


def _character(byte: int) -> str:
    return repr(chr(byte)) if 32 <= byte < 127 else f"byte {byte}"


def _numbers(size: int) -> tuple[str, ...]:
    return tuple(map(str, range(size)))
