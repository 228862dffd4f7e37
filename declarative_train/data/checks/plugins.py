"""Messages on what plugins do with data.

Each function is one message; its docstring is the manual page of its code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified
from declarative_train.core.span import Span
from declarative_train.files.paths import SourceError


def plugin_source_fails(span: Span, problem: SourceError) -> Diagnostic:
    """plugin-source-fails (D050)

    Finds: a source of a plugin whose code raises, draws random numbers, or returns rows that do not fit its columns.
           Found with `--plugins`, and by `run`.
    Why:   rows are requested by number, in any order, in any process, and may be cached: they must always be the same.
    Diff:
    -   plugins: [my_data.py]   # def __getitem__(self, index): raise OSError("no")
        data:
    -     source: {type: torn}
    +     source: {type: csv, path: data/digits.csv}
    """
    return error("D050", span, str(problem), problem.help)


def plugin_data_not_run(span: Span, what: str, type: str, has_columns: bool) -> Diagnostic:
    """plugin-data-not-run (D051)

    Finds: a source, field or transform of a plugin, in a recipe that is checked without running its code.
    Why:   only its code knows the number of rows and their values. The columns that a source declares are checked
           against the fields; the values, the graph and the plan are not.
    Diff:
    -   plugins: [my_data.py]   # class Digits(Source): ...
        data:
    -     source: {type: digits}
    +     source: {type: csv, path: data/digits.csv}
    """
    lacks = "" if has_columns else ", and it declares no `columns`"
    message = (
        f"the {what} `{type}` belongs to a plugin, whose code was not run{lacks}: samples and graph are not checked"
    )
    return unverified("D051", span, message, "`--plugins` imports the recipe's plugins and checks all of it")


def plugin_field_fails(span: Span, field: str, message: str, place: str, help: str | None) -> Diagnostic:
    """plugin-field-fails (D052)

    Finds: a field of a plugin whose code raises for a row, or returns another tensor than it declares. Found with
           `--plugins`, and by `run`.
    Why:   a batch is one tensor, and the layers are made for its shape.
    Diff:
    -   plugins: [my_data.py]   # class Wide(Field): shape = (9,)
    +   plugins: [my_data.py]   # class One(Field): shape = (1,)
        data:
          fields:
    -       pixels: {type: wide, column: p0}
    +       other: {type: one, column: p0}
    """
    return error("D052", span, f"field `{field}`: {message}, in {place}", help)
