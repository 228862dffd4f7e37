"""Messages on sources: files that are missing, unreadable or have different columns, unknown columns, remote sources,
and plugins whose sources or fields fail.

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

    Finds: a source whose `path` names a file or folder that does not exist.
    Why:   there are no rows to read, so the run would stop before its first step.
    Diff:
        data:
    -     source: {type: csv, path: data/digit.csv}
    +     source: {type: csv, path: data/digits.csv}
    """
    close = nearest(problem.name, problem.known)
    hint = f"did you mean `{close}`?" if close is not None else problem.help
    if hint is None and problem.path:  # a local path
        hint = hint_on_path(span, problem.path)
    return error("D001", span, str(problem), hint)


def empty_glob(span: Span, problem: SourceError) -> Diagnostic:
    """empty-glob (D002)

    Finds: a `path` of a source with `*`, `?` or `[ ]` that matches no file.
    Why:   the source would have no rows.
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

    Finds: a file that its source cannot read because it is damaged, empty, of another type, or may not be read by this
           user.
    Why:   rows that cannot be read would be missing from the training data.
    Diff:
        data:
    -     source: {type: parquet, path: data/digits.csv}
    +     source: {type: csv, path: data/digits.csv}
    """
    return error("D003", span, str(problem), problem.help)


def different_columns(span: Span, problem: SourceError) -> Diagnostic:
    """different-columns (D004)

    Finds: several files of one source that have different columns, two columns with the same name, or sources of a
           mixture without a common column.
    Why:   the rows of such files do not form one table.
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

    Finds: a column, named in a field, a set or `window`, that the source does not have or cannot read; or a pattern
           such as `p*` that matches no column.
    Why:   without this column, the field has no values, or the rows cannot be divided.
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

    Finds: a source on another machine, if the recipe is only checked (`dtrain lint`).
    Why:   its columns, types and number of rows are known only after it is read, which `dtrain plan` and `dtrain run`
           do.
    Diff:
        data:
    -     source: {type: parquet, path: "s3://corpus/*.parquet"}  # not wrong, but not checked by lint
    +     source: {type: csv, path: data/digits.csv}  # a copy on this machine is checked
    """
    message = f"{format_path(path)} is remote and was not checked"
    return unverified("D015", span, message, "`dtrain plan` reads its columns and rows")


def source_without_file_system(span: Span, problem: SourceError) -> Diagnostic:
    """source-without-file-system (D020)

    Finds: a `path` that is a URL, if its protocol is not known or the Python package for it is not installed.
    Why:   no file can be read from this URL on this machine.
    Diff:
        data:
    -     source: {type: csv, path: "nowhere://digits.csv"}
    +     source: {type: csv, path: data/digits.csv}
    """
    return error("D020", span, str(problem), problem.help)


def plugin_source_fails(span: Span, problem: SourceError) -> Diagnostic:
    """plugin-source-fails (D050)

    Finds: a source of a plugin whose code raises an error, draws random numbers, or returns rows that do not match its
           columns. This is checked with `--plugins` and by `dtrain run`.
    Why:   each row is requested by its number, in any order and in several processes, and may be cached. It must
           therefore have the same values each time.
    Diff:
    -   plugins: [my_data.py]   # def __getitem__(self, index): raise OSError("no")
        data:
    -     source: {type: torn}
    +     source: {type: csv, path: data/digits.csv}
    """
    return error("D050", span, str(problem), problem.help)


def plugin_data_not_run(span: Span, what: str, type: str, has_columns: bool) -> Diagnostic:
    """plugin-data-not-run (D051)

    Finds: a source, field or transform of a plugin, if the recipe is checked without `--plugins`, so that its code does
           not run.
    Why:   only this code gives the rows and their values. The columns that a source declares are checked against the
           fields; the values, the graph and the plan are not checked.
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

    Finds: a field of a plugin whose code raises an error for a row, or returns a tensor of another shape or dtype than
           it declares. This is checked with `--plugins` and by `dtrain run`.
    Why:   the samples of a batch are stacked to one tensor, and the layers are made for the declared shape.
    Diff:
    -   plugins: [my_data.py]   # class Wide(Field): shape = (9,)
    +   plugins: [my_data.py]   # class One(Field): shape = (1,)
        data:
          fields:
    -       pixels: {type: wide, column: p0}
    +       other: {type: one, column: p0}
    """
    return error("D052", span, f"field `{field}`: {message}, in {place}", help)
