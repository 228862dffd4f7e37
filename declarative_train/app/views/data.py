"""Tables about the data of a recipe (sets, columns, fields, classes), as text or as one HTML page.

If a table describes only some of the rows, its title says how many."""

from __future__ import annotations

import base64
import html
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from declarative_train.app.views.titled_table import Shown
from declarative_train.components.data import LISTS, MESSAGES, Column, Table
from declarative_train.core.amounts import format_count
from declarative_train.core.packs import hooks
from declarative_train.data.mixture import MIXTURE, list_mixture
from declarative_train.data.prepared_set import PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataSpec, FieldSpec
from declarative_train.data.split_rows import TRAINING

_LOOKED_AT = 1 << 16  # rows of the source from which columns are described
_SAMPLES = 256  # training samples from which fields are described
_CLASSES = 40
_COLUMNS = 100
_LONGEST = 24  # shown characters of a value


def sections(data: DataSpec) -> list[Shown]:
    """Return all tables about the data of a recipe: sets, mixture, columns, fields, classes. Packs, which are optional
    parts of dtrain, may add tables. Raises DataError, SourceError and BadSampleError."""
    sets = prepare_sets(data)
    found = [
        Shown("sets", ("set", "samples"), [(name, f"{each.num_samples:,}") for name, each in sets.items()], (1,)),
        *([Shown("mixture of the training set", MIXTURE, list_mixture(data), (1, 2, 3))] if data.mix else []),
        _columns(data, sets[TRAINING]),
        _fields(data, sets[TRAINING]),
    ]
    for data_tables in hooks("data_tables"):
        found += data_tables(data, sets)
    return found + [_classes(field, sets) for field in data.fields if field.component["type"] == "category"]


def _columns(data: DataSpec, training: PreparedSet) -> Shown:
    """Return a table with a row for each column of the training set's source: what the column holds, and which fields
    read it."""
    table = training.table.original
    looked = min(table.num_rows, _LOOKED_AT)
    readers: dict[str, list[str]] = {}
    for field in data.fields:
        for name in field.columns:
            readers.setdefault(name, []).append(field.name)
    rows: list[tuple[str, ...]] = []
    for name, column in list(table.columns.items())[:_COLUMNS]:
        missing, holds = ("", "files") if column.dtype == "bytes" else _describe_values(table, column, looked)
        rows.append((name, _kind(column), missing, holds, ", ".join(readers.get(name, []))))
    rows += [(name, "not read", "", why, "") for name, why in list(table.left_out.items())[:_COLUMNS]]
    title = f"columns, {_rows_of(looked, table.num_rows)}"
    if len(table.columns) > _COLUMNS:
        title += f"; the first {_COLUMNS} of {len(table.columns):,}"
    return Shown(title, ("column", "holds", "missing", "values", "read by"), rows, (2,))


def _describe_values(table: Table, column: Column, looked: int) -> tuple[str, str]:
    values = table.read([column.name], slice(0, looked))[column.name]
    if values.dtype == object:
        present = Counter(value for value in values.ravel().tolist() if value is not None)
        lacking = values.size - present.total()
        first = ", ".join(_short(str(value)) for value, _ in present.most_common(3))
        return f"{lacking:,}" if lacking else "", f"{format_count(len(present), 'different value')}: {first}"
    lacks = np.isnat(values) if values.dtype.kind == "M" else values != values
    present_values = values[~lacks]
    missing = f"{int(lacks.sum()):,}" if lacks.any() else ""
    if not present_values.size:
        return missing, ""
    return missing, f"{_number(present_values.min())} to {_number(present_values.max())}"


def _short(text: str) -> str:
    """Return a text on one line. A long text loses its beginning, because the end of a path is more useful."""
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"...{text[-_LONGEST:]}"


def _kind(column: Column) -> str:
    word = {"object": "text", MESSAGES: "lists of messages", LISTS: "lists", "bytes": "files or pictures"}.get(
        column.dtype, column.dtype
    )
    return f"{word} ({', '.join(map(str, column.shape))})" if column.shape else word


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)


def _rows_of(looked: int, total: int) -> str:
    return (
        f"all {format_count(total, 'row')}"
        if looked == total
        else f"the first {looked:,} of {format_count(total, 'row')}"
    )


def _fields(data: DataSpec, training: PreparedSet) -> Shown:
    """Return the table of the fields with the values that the model gets. Images are shown after the transforms of
    training."""
    count = min(training.num_samples, _SAMPLES)
    chosen = np.linspace(0, training.num_samples - 1, count).astype(np.int64)
    made = training.gather(chosen, epoch=0)
    rows = []
    for field in data.fields:
        values = made[field.name]
        whole = values.dtype.kind in "iub"
        ends = [f"{int(value)}" if whole else f"{value:.4g}" for value in (values.min(), values.max())]
        values = values.astype(np.float64)
        rows.append(
            (
                field.name,
                str(field.component["type"]),
                f"({', '.join(map(str, field.tensor.shape))}) {field.tensor.dtype}",
                *(ends[0], f"{values.mean():.4g}", ends[1], f"{values.std():.4g}"),
            )
        )
    header = ("field", "type", "sample", "least", "mean", "greatest", "deviation")
    return Shown(f"fields, {format_count(count, 'sample')} of training", header, rows, (3, 4, 5, 6))


def _classes(field: FieldSpec, sets: dict[str, PreparedSet]) -> Shown:
    """Return a table with the number of samples of each class in each set. If the field reads several columns, their
    values are counted together."""
    counts = {name: _counts(each, field.name) for name, each in sets.items()}
    size = field.tensor.shape[-1] if field.component.get("one_hot") else field.tensor.num_values or 1
    every = Counter[int]()
    for each, _ in counts.values():
        every.update(each)
    shown = list(range(size)) if size <= _CLASSES else [number for number, _ in every.most_common(_CLASSES)]
    names = _names(field)
    rows = [
        (str(number), names.get(number, ""), *(f"{each[number]:,}" for each, _ in counts.values())) for number in shown
    ]
    title = f"classes of {field.name}"
    if size > _CLASSES:
        title += f", the {_CLASSES} most frequent of {size:,}"
    if any(is_part for _, is_part in counts.values()):
        title += f", by at most {_LOOKED_AT:,} samples of a set"
    return Shown(title, ("class", "name", *counts), rows, (0, *range(2, 2 + len(counts))))


def _counts(prepared: PreparedSet, name: str) -> tuple[Counter[int], bool]:
    """Return ({class: number of its occurrences in a set}, whether only part of the set was counted). `name`: the
    field."""
    count = min(prepared.num_samples, _LOOKED_AT)
    values = prepared.gather(np.arange(count), [name])[name]
    values = values.argmax(-1) if values.dtype.kind == "f" else values  # a field with `one_hot`
    return Counter(values.ravel().tolist()), count < prepared.num_samples


def _names(field: FieldSpec) -> dict[int, str]:
    """Return {class number: name} if all columns of the field share one vocabulary; otherwise {}."""
    found = field.statistics.get("vocabulary")
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], list):
        return {}
    unknown = field.component.get("unknown")
    numbers = (number for number in range(len(found[0]) + 1) if number != unknown)
    return {number: str(word) for number, word in zip(numbers, found[0], strict=False)}


def page(name: str, shown: Sequence[Shown], first_rows: str, sheet: bytes | None) -> str:
    """Return an HTML page with the tables `shown`; it needs no other files. `name`: name of the recipe. `first_rows`:
    the first samples as text. `sheet`: an image of samples as PNG, or None.
    """
    body = [f"<h1>Data of {html.escape(name)}</h1>"]
    if sheet is not None:
        picture = base64.b64encode(sheet).decode()
        body.append("<h2>pictures</h2>")
        body.append(f'<img alt="pictures before and after the transforms" src="data:image/png;base64,{picture}">')
    for each in shown:
        body.append(f"<h2>{html.escape(each.title)}</h2>\n<table>\n{''.join(_table_rows(each))}</table>")
    body.append(f"<h2>first samples</h2>\n<pre>{html.escape(first_rows)}</pre>")
    return _PAGE.format(title=html.escape(f"Data of {name}"), body="\n".join(body))


def _table_rows(each: Shown) -> Iterator[str]:
    for tag, rows in (("th", [each.header]), ("td", each.rows)):
        for row in rows:
            cells = (
                f"<{tag}{' class=number' if at in each.right else ''}>{html.escape(cell)}</{tag}>"
                for at, cell in enumerate(row)
            )
            yield f"<tr>{''.join(cells)}</tr>\n"


_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1a1a1a }}
h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem }}
table {{ border-collapse: collapse }}
th, td {{ text-align: left; padding: .2rem 1rem .2rem 0; border-bottom: 1px solid #ddd; vertical-align: top }}
.number {{ text-align: right; font-variant-numeric: tabular-nums }}
img {{ max-width: 100% }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem }}
</style>
{body}
</html>
"""
