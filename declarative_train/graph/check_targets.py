"""Checks of targets: whether the model reads columns of a target as an input, and in which unit metrics are
reported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from declarative_train.components.data import Unit
from declarative_train.components.expressions.functions import VIEWS
from declarative_train.components.expressions.tree import is_made_by
from declarative_train.components.fields import FIELDS
from declarative_train.components.fields.columns import parse_cut
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.graph.check_objective import measures_of
from declarative_train.graph.checks.objective import metric_without_unit, target_among_inputs
from declarative_train.recipe.model.tree import Wire, term_of
from declarative_train.recipe.model.walk import Frame, inputs_before, walk
from declarative_train.recipe.recipe import Recipe


def check_targets(recipe: Recipe, data: DataSpec) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each pair of an input field and a target field that share columns. Two cases are intended
    and not reported: an autoencoder, and fields of different rows of a window."""
    scope = recipe.model.scope
    fields = {field.name: field for field in data.fields}
    targets = {
        name: _find_fields(Frame(scope), scope.outputs.get(term.target, term.target))
        for name, term in recipe.objective.losses.items()
        if term.target is not None
    }
    wanted = {
        column for names in targets.values() for name in names if name in fields for column in fields[name].columns
    }
    said = set[tuple[str, str]]()
    for term, names in targets.items():
        wire = scope.outputs.get(recipe.objective.losses[term].input, recipe.objective.losses[term].input)
        read = inputs_before(Frame(scope), [wire])
        for target in [fields[name] for name in names if name in fields]:
            for field in [fields[name] for name in fields if name in read and name not in names]:
                shared = _find_shared(field, target, data, wanted)
                if shared and (field.name, target.name) not in said:
                    said.add((field.name, target.name))
                    yield _problem(recipe, data, field, target, shared)


def _find_shared(field: FieldSpec, target: FieldSpec, data: DataSpec, wanted: set[str]) -> list[str]:
    """Return the columns that both `field`, an input of the model, and `target` read. Return [] if this is no mistake:
    all columns of `field` are targets (an autoencoder), or the two fields read different rows of a window. `wanted`:
    the columns of all targets."""
    common = [column for column in field.columns if column in target.columns]
    if not common:
        return []
    whole = data.window is None or not {"rows"} & {key for each in (field, target) for key in _list_keys(each)}
    if whole:
        is_made_again = set(field.columns) <= wanted and (len(field.columns) > 1 or field.tensor.num_elements > 1)
        return [] if is_made_again else common
    assert data.window is not None
    seen, asked = (_rows(each, data.window.length) for each in (field, target))
    if not set(seen) & set(asked) or (len(seen) == len(asked) and asked[0] != seen[0]):
        return []
    return common


def _list_keys(field: FieldSpec) -> list[str]:
    return [key for key, value in field.component.items() if value is not None]


def _rows(field: FieldSpec, length: int) -> range:
    rows = field.component.get("rows")
    cut = parse_cut(rows if isinstance(rows, int | str) else None)
    if isinstance(cut, int):
        return range(cut % length, cut % length + 1)
    return range(*(cut or slice(None)).indices(length))


def _problem(recipe: Recipe, data: DataSpec, field: FieldSpec, target: FieldSpec, shared: Sequence[str]) -> Diagnostic:
    key = "column" if field.component.get("column") is not None else "columns"
    other = "column" if target.component.get("column") is not None else "columns"
    if data.window is not None and "rows" in (*_list_keys(field), *_list_keys(target)):
        hint = "end the rows of one where those of the other start, or shift one by a row: `:-1` and `1:`"
    elif key == "columns":
        hint = f"exclude it from the input: exclude: [{', '.join(shared)}]"
    else:
        hint = "use other columns for the input; for an autoencoder, use the input's field as the target"
    place = recipe.span(f"data.fields.{field.name}.{key}")
    return target_among_inputs(
        place, field.name, target.name, shared, hint, recipe.span(f"data.fields.{target.name}.{other}")
    )


def _find_fields(frame: Frame, wire: Wire) -> frozenset[str]:
    """Return the names of the fields from which a wire (a value in the model graph) is computed by expressions alone.
    Return an empty set if a layer takes part in the computation."""
    found = list(walk(frame, [wire]))
    if any(each.node is not None and (term_of(each.node) is None or not each.inputs) for each in found):
        return frozenset()
    return frozenset(each.wire for each in found if each.node is None)


def units(recipe: Recipe, data: DataSpec) -> tuple[dict[str, tuple[str, Unit]], list[Diagnostic]]:
    """Return (conversions, diagnostics) for metrics that are shown in the unit of the data columns. `conversions`:
    {name of a metric: (field of its target, conversion)}. A metric whose target already has this unit is left out. A
    metric that cannot be converted gets a diagnostic."""
    scope = recipe.model.scope
    frame = Frame(scope)
    found: dict[str, tuple[str, Unit]] = {}
    diagnostics = []
    units = {field.name: unit_of(field) for field in data.fields}
    for measure in measures_of(recipe):
        if not measure.component.has_unit or measure.edges.target is None:
            continue
        wire = scope.outputs.get(measure.edges.target, measure.edges.target)
        changed = {name: unit for name in _find_fields(frame, wire) if (unit := units.get(name)) is not None}
        if not changed:
            continue
        name, unit = next(iter(changed.items()))
        is_kept = ":" not in wire or (len(unit.add) == 1 and _is_view(frame, wire))
        if len(changed) == 1 and is_kept:
            found[measure.name] = (name, unit)
        else:
            place = recipe.span(("objective", "metrics", measure.name))
            diagnostics.append(metric_without_unit(place, measure.component.type, measure.edges.target, name))
    return found, diagnostics


def unit_of(field: FieldSpec) -> Unit | None:
    """Return the conversion (value * multiply + add) from the values of a field to the values of its columns. Return
    None if the field does not change the values of the columns."""
    return FIELDS.read(field.component).unit(field.statistics)


def _is_view(frame: Frame, wire: Wire) -> bool:
    """Return whether a wire (a value in the model graph) is a field, or a field whose values are only rearranged
    (reshape, slice, transpose)."""
    terms = [term_of(each.node) for each in walk(frame, [wire]) if each.node is not None]
    return all(term is not None and is_made_by(term, VIEWS) for term in terms)
