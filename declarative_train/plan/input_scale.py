"""Checks of the scale of inputs and targets. Initial weights are made for values with mean 0 and standard deviation 1.

A field is checked only if a layer with weights reads its values as they are, or reshaped or concatenated. Values that
were scaled, normalised or otherwise computed are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf

import numpy as np

from declarative_train.components.expressions.functions import INDEX, VIEWS
from declarative_train.components.expressions.tree import is_made_by
from declarative_train.components.fields import FIELDS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.data.shared_sets import Sample
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.graph.check_objective import measures_of
from declarative_train.plan.checks.inputs import (
    channels_last,
    columns_of_other_magnitude,
    id_as_feature,
    large_targets,
    relative_error_around_zero,
    target_out_of_reach,
    unscaled_input,
)
from declarative_train.recipe.model.tree import LayerNode, Scope, Wire, term_of
from declarative_train.recipe.model.walk import Frame, Source, all_nodes, find_source, operation_of, walk
from declarative_train.recipe.recipe import Recipe

_WEIGHING = frozenset({"bilinear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
                       "conv_transpose3d", "gru", "linear", "lstm", "patch_embedding", "rnn"})  # fmt: skip
_SHAPED = (VIEWS - {INDEX}) | {"float"}
_SAME = _SHAPED | {"concat", "stack"}
_ROWS = 2048  # rows that are examined
# root mean squares from which there is a warning; initial weights are made for values of about 1
_LARGE, _LARGE_TARGETS = 30.0, 1e3
_APART = 1000.0  # ratio of the sizes of two columns from which there is a warning
_OF_PICTURES = frozenset({"conv2d", "patch_embedding"})
_CHANNELS = (1, 3, 4)
_LEAST_SIDE = 16  # shortest side of an image that is not square
_LEAST_IDS = 100  # with at least so many rows, consecutive numbers are an id under any column name
_ID = re.compile(r"(?i)(|unnamed:? ?\d*|(.*[_ .-])?(id|idx|index|uuid|key|rownum|row_?(id|no|number|index)))")
_DISTANCES = frozenset({"huber", "l1", "mse", "smooth_l1"})
_REACH = {
    **dict.fromkeys(("abs", "exp", "relu", "softplus", "square"), (0.0, inf)),
    **dict.fromkeys(("hardsigmoid", "sigmoid", "softmax"), (0.0, 1.0)),
    **dict.fromkeys(("cos", "sin", "softsign", "tanh"), (-1.0, 1.0)),
    "relu6": (0.0, 6.0),
}
_OUT_OF_REACH, _SLACK = 0.02, 1e-6  # share of targets out of reach that is reported; tolerance for rounding


def check_inputs(recipe: Recipe, data: DataSpec, rows: Sample) -> Iterator[Diagnostic]:
    """Warn about inputs and targets whose scale does not suit a network, and about columns that only number the
    rows."""
    fields = {field.name: field for field in data.fields}
    read: dict[str, list[LayerNode]] = {}
    for frame, node in all_nodes(Frame(recipe.model.scope)):
        if isinstance(node, LayerNode) and node.layer.type in _WEIGHING:
            for name in sorted(_find_values(frame, node.inputs.values())):
                read.setdefault(name, []).append(node)
    for name, place in _find_pictures(recipe.model.scope).items():
        if name in fields and _is_channels_last(fields[name].tensor.shape):
            yield channels_last(place, name, fields[name].tensor.shape)
    for name, layers in read.items():
        if name in fields:
            yield from _check_field(recipe, data, fields[name], layers, rows)
    yield from _check_targets(recipe, fields, rows)
    yield from _check_relative_errors(recipe, fields, rows)


def _find_values(frame: Frame, wires: Iterable[Wire]) -> set[str]:
    """Return the names of the fields from which the values `wires` are made by copying, reshaping or concatenating
    alone."""
    return {source.wire for source in walk(frame, wires, _follow_values) if source.node is None}


def _follow_values(source: Source) -> Iterable[Wire]:
    node = source.node
    term = None if node is None else term_of(node)
    is_dropout = isinstance(node, LayerNode) and node.layer.type == "dropout"
    return source.inputs.values() if is_dropout or (term is not None and is_made_by(term, _SAME)) else ()


def _find_pictures(scope: Scope) -> Mapping[str, Span]:
    """Return {field: span} for each field that a layer for images reads unchanged. `span`: place of this layer's
    input in the recipe; if the layer is inside a block, the place of the outermost block's input. If several layers
    read a field, the first one counts."""
    found: dict[str, Span] = {}
    for frame, node in all_nodes(Frame(scope)):
        if isinstance(node, LayerNode) and node.layer.type in _OF_PICTURES:
            port, wire = next(iter(node.inputs.items()))
            while ":" not in wire and frame.caller is not None and frame.outer is not None:
                node, port, wire, frame = frame.caller, wire, frame.caller.inputs[wire], frame.outer
            if ":" not in wire:
                found.setdefault(wire, node.input_spans.get(port, node.span))
    return found


def _check_field(
    recipe: Recipe, data: DataSpec, field: FieldSpec, layers: Sequence[LayerNode], rows: Sample
) -> Iterator[Diagnostic]:
    place, shape = recipe.span(f"data.fields.{field.name}.{key_of_columns(field)}"), field.tensor.shape
    values = rows.first(field.name, _ROWS)
    if values is None or not len(values) or values.dtype == bool:
        return
    yield from _check_magnitudes(field, place, layers[0].path, values)
    if data.window is None and shape == (len(field.columns),) and len(field.columns) > 1:
        columns = as_in_the_file(field, np.asarray(values, np.float64))
        numbers = [name for name, each in zip(field.columns, columns.T, strict=True) if _is_row_index(name, each)]
        if numbers:
            yield id_as_feature(place, field.name, numbers[0])


def _is_channels_last(shape: tuple[int, ...]) -> bool:
    """Return whether a shape is probably that of an image as (height, width, channels). It has 1, 3 or 4 channels and
    equal sides; with several channels, the sides may also differ, up to a factor of 4. A shape such as (64, 10, 1) is
    not taken for an image: it may have 64 channels."""
    if len(shape) != 3 or shape[2] not in _CHANNELS or min(shape[:2]) <= shape[2]:
        return False
    return shape[0] == shape[1] or (shape[2] > 1 and min(shape[:2]) >= _LEAST_SIDE and max(shape) <= 4 * min(shape[:2]))


def _check_magnitudes(field: FieldSpec, place: Span, layer: str, values: np.ndarray) -> Iterator[Diagnostic]:
    shape = field.tensor.shape
    by_column = values if len(field.columns) > 1 and shape[-1:] == (len(field.columns),) else values[..., None]
    sizes = _root_mean_square(by_column.reshape(-1, by_column.shape[-1]))
    least, greatest = values.min(), values.max()
    positive = sizes > 0
    if positive.any() and sizes.max() >= max(_LARGE, _APART * sizes[positive].min()):
        small = int(np.flatnonzero(positive)[np.argmin(sizes[positive])])
        large = int(np.argmax(sizes))
        names = (field.columns[small], field.columns[large])
        yield columns_of_other_magnitude(place, field.name, names, (sizes[small], sizes[large]))
    elif _root_mean_square(sizes[:, None])[0] >= _LARGE:
        is_image = 100 < greatest <= 255 and least >= 0 and bool((values == np.floor(values)).all()) and len(shape) > 0
        yield unscaled_input(place, field.name, layer, (float(least), float(greatest)), is_image=is_image)


def _root_mean_square(columns: np.ndarray) -> np.ndarray:
    """Return the root mean square of each column, without a copy of the values in float64."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->j", columns, columns, dtype=np.float64) / len(columns)))


def as_in_the_file(field: FieldSpec, values: np.ndarray) -> np.ndarray:
    """Return the values of a field in the unit of its columns: undo `scale` and `normalize`."""
    unit = FIELDS.read(field.component).unit(field.statistics)
    return values if unit is None else values * np.asarray(unit.multiply) + np.asarray(unit.add)


def _is_row_index(name: str, values: np.ndarray) -> bool:
    """Return whether a column only numbers the rows: its values are whole numbers that increase from row to row.

    If the column is not named like an id, it must also have many rows, and contain at least half of the whole numbers
    between its first and last value. (The other numbers may be in other sets.)
    """
    whole = np.rint(values)
    if len(whole) < 3 or np.abs(values - whole).max() > 0.01 or (np.diff(whole) < 1).any():
        return False
    is_dense = whole[-1] - whole[0] < 2 * len(whole)
    return _ID.fullmatch(name) is not None or (is_dense and len(whole) >= _LEAST_IDS)


def _check_targets(recipe: Recipe, fields: Mapping[str, FieldSpec], rows: Sample) -> Iterator[Diagnostic]:
    scope, frame = recipe.model.scope, Frame(recipe.model.scope)
    for name, term in recipe.objective.losses.items():
        target = scope.outputs.get(term.target or "", term.target or "")
        made = scope.outputs.get(term.input, term.input)
        if term.component.type not in _DISTANCES:
            continue
        function = operation_of(scope, made) or ""
        for field in [fields[each] for each in sorted(_find_values(frame, [target])) if each in fields]:
            values = rows.first(field.name, _ROWS)
            if values is None or not len(values):
                continue
            if function in _REACH and term.mask is None:
                low, high = _REACH[function]
                share = float(np.mean((values < low - _SLACK) | (values > high + _SLACK)))
                if share > _OUT_OF_REACH:
                    place = recipe.span(("objective", "losses", name, "input"))
                    yield target_out_of_reach(place, term.input, function, field.name, share)
            if not _is_from_layer(frame, made):
                continue
            size = float(_root_mean_square(values.reshape(-1, 1))[0])
            if size >= _LARGE_TARGETS:
                place = recipe.span(f"data.fields.{field.name}.{key_of_columns(field)}")
                yield large_targets(place, field.name, name, size)


def _check_relative_errors(recipe: Recipe, fields: Mapping[str, FieldSpec], rows: Sample) -> Iterator[Diagnostic]:
    scope, frame = recipe.model.scope, Frame(recipe.model.scope)
    for measure in measures_of(recipe):
        target = scope.outputs.get(measure.edges.target or "", measure.edges.target or "")
        if measure.component.type != "mape" or measure.edges.mask is not None:
            continue
        for field in [fields[each] for each in sorted(_find_values(frame, [target])) if each in fields]:
            values = rows.first(field.name, _ROWS)
            if values is not None and len(values):
                found = as_in_the_file(field, np.asarray(values, np.float64))
                if found.min() <= _SLACK and found.max() > _SLACK:
                    place = recipe.span(("objective", "metrics", measure.name))
                    yield relative_error_around_zero(place, measure.name, field.name)


def _is_from_layer(frame: Frame, wire: Wire) -> bool:
    """Return whether `wire` is the output of a layer with weights, perhaps reshaped or indexed. Return False if other
    functions are applied to it: `x * 50 + 10` may already convert it to the unit of the target."""
    frame, _, node, inputs = find_source(frame, wire)
    if node is not None and (term := term_of(node)) is not None:
        return is_made_by(term, _SHAPED | {INDEX}) and all(_is_from_layer(frame, each) for each in inputs.values())
    return isinstance(node, LayerNode) and node.layer.type in _WEIGHING


def key_of_columns(field: FieldSpec) -> str:
    """Return the key under which the field lists its columns in the recipe: `columns` or `column`."""
    return "columns" if field.component.get("columns") is not None else "column"
