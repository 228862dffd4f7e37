"""Messages on sources: their files, whether they exist, are readable and of one kind; and the code of plugins.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified
from declarative_train.core.diagnostics.suggest import did_you_mean, hint_on_path, nearest, suggest_fix
from declarative_train.core.span import Span
from declarative_train.files.open_files import format_path
from declarative_train.files.paths import SourceError


def missing_file(span: Span, problem: SourceError) -> Diagnostic:
    """missing-file (D001)

    Finds: a file of a source that is not there.
    Why:   the run would stop as soon as it reads the first row.
    Diff:
        data:
    -     source: {type: csv, path: data/digit.csv}
    +     source: {type: csv, path: data/digits.csv}
    """
    close = nearest(problem.name, problem.known)
    hint = f"did you mean `{close}`?" if close is not None else problem.help
    if hint is None and problem.path:  # not of a URL
        hint = hint_on_path(span, problem.path)
    return error("D001", span, str(problem), hint)


def empty_glob(span: Span, problem: SourceError) -> Diagnostic:
    """empty-glob (D002)

    Finds: a glob that matches no file.
    Why:   a source without files has no rows, which is probably not intended.
    Diff:
        data:
    -     source: {type: csv, path: "data/*.tsv"}
    +     source: {type: csv, path: "data/digits*.csv"}
    """
    return error(
        "D002", span, str(problem), problem.help or f"{hint_on_path(span, problem.path)}; `**` goes through folders"
    )


def unreadable_source(span: Span, problem: SourceError) -> Diagnostic:
    """unreadable-source (D003)

    Finds: a file that its source cannot read: damaged, empty, of another kind, or without permission.
    Why:   training on a part of a table would go unnoticed.
    Diff:
        data:
    -     source: {type: parquet, path: data/digits.csv}
    +     source: {type: csv, path: data/digits.csv}
    """
    return error("D003", span, str(problem), problem.help)


def different_columns(span: Span, problem: SourceError) -> Diagnostic:
    """different-columns (D004)

    Finds: files of one source whose columns are not the same, or a file with two columns of one name.
    Why:   rows of such files do not form one table.
    Diff:
        data:
    -     source: {type: csv, path: [data/digits.csv, data/people.csv]}
    +     source: {type: csv, path: [data/digits.csv]}
    """
    return error("D004", span, str(problem), problem.help or "name only files with the same columns")


def unknown_column(
    span: Span, name: str, known: Iterable[str], left_out: Mapping[str, str], source: str = "the source"
) -> Diagnostic:
    """unknown-column (D005)

    Finds: a column, or a glob of columns, that the source does not have.
    Why:   a field or a set cannot use it.
    Diff:
        data:
          fields:
    -       digit: {type: category, column: lable, num_classes: 10}
    +       digit: {type: category, column: label, num_classes: 10}
    """
    # `left_out`: why a column of the file cannot be read.
    names = list(known)
    if name in left_out:
        return error("D005", span, f"`{name}` cannot be read: {left_out[name]}", did_you_mean("", names))
    if any(sign in name for sign in "*?["):
        return error("D005", span, f"no column of {source} matches `{name}`", did_you_mean(name.strip("*?"), names))
    if len(names) == 1 and (other := next((sign for sign in ";\t|," if sign in names[0]), None)) is not None:
        hint = f"its only column is `{names[0]}`: set `delimiter: {other!r}` in the source"
        return error("D005", span, f"{source} has no column `{name}`", hint)
    message, fixes = f"{source} has no column `{name}`", suggest_fix(span, name, names)
    return error("D005", span, message, did_you_mean(name, names), fixes=fixes)


def remote_source(span: Span, path: str) -> Diagnostic:
    """remote-source (D015)

    Finds: a source on another machine, when only the recipe is checked.
    Why:   its columns, types and rows are known only after reading it: `dtrain plan` and `dtrain run` read it.
    Diff:
        data:
    -     source: {type: parquet, path: "s3://corpus/*.parquet"}  # not wrong, but not checked by lint
    +     source: {type: csv, path: data/digits.csv}  # a copy on this machine is checked
    """
    message = f"{format_path(path)} is remote and was not checked"
    return unverified("D015", span, message, "`dtrain plan` reads its columns and rows")


def source_without_file_system(span: Span, problem: SourceError) -> Diagnostic:
    """source-without-file-system (D020)

    Finds: a URL whose file system is not installed or not known.
    Why:   nothing can be read from it on this machine.
    Diff:
        data:
    -     source: {type: csv, path: "nowhere://digits.csv"}
    +     source: {type: csv, path: data/digits.csv}
    """
    return error("D020", span, str(problem), problem.help)


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
