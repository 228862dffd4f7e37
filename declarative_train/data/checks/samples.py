"""Messages on sets, windows and batches: which rows become samples, and how many at a time.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from declarative_train.components.data import Table
from declarative_train.components.split import Split
from declarative_train.components.splits.shares import make_comparable
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.span import Span
from declarative_train.data.rows import SetRows
from declarative_train.data.split_rows import TRAINING


def empty_set(span: Span, name: str, message: str, help: str | None) -> Diagnostic:
    """empty-set (D010)

    Finds: a set without a sample.
    Why:   an empty training set trains nothing, and a metric of an empty set is not defined.
    Diff:
        data:
    -     split: {validation: {type: where, column: label, equals: 11}}
    +     split: {validation: {type: where, column: label, equals: 9}}
    """
    return error("D010", span, f"set `{name}` is empty: {message}", help)


def window_cut_to_pieces(span: Span, name: str, kind: str, length: int) -> Diagnostic:
    """window-cut-to-pieces (D011)

    Finds: a set of `type: random` or `type: stratified`, which are drawn row by row, together with `window`.
    Why:   consecutive rows are drawn into different sets, so hardly any window has all its rows in one set.
    Diff:
        data:
          window: {length: 16, stride: 1}
    -     split: {validation: {type: random, fraction: 0.2}}
    +     split: {validation: {type: last, fraction: 0.2}}
    """
    message = f"`{kind}` draws the rows of `{name}` one by one, but a window needs {length} consecutive rows in one set"
    return error("D011", span, message, "use `type: last` (the last rows) or `type: grouped` (whole groups)")


def rows_without_window(span: Span, field: str) -> Diagnostic:
    """rows-without-window (D012)

    Finds: the key `rows` on a field, if `data` has no `window`.
    Why:   `rows` selects rows of a window; without a window, a sample is one row of the source.
    Diff:
        data:
    +     window: {length: 8, stride: 8}
          fields:
            pixels: {rows: ":4"}
    +       digit: {rows: 0}
    +     split: {validation: {type: last, fraction: 0.2}}
    """
    return error(
        "D012", span, f"field `{field}` has `rows` of a window, but `data` has no `window`", "add `window: {length: N}`"
    )


def rows_outside_window(span: Span, field: str, rows: str | int, length: int) -> Diagnostic:
    """rows-outside-window (D013)

    Finds: a `rows` that selects no row of the window.
    Why:   the field would be empty.
    Diff:
        data:
          window: {length: 8, stride: 8}
          fields:
    -       pixels: {rows: "8:"}
    +       pixels: {rows: "7:"}
            digit: {rows: 0}
          split: {validation: {type: last, fraction: 0.2}}
    """
    message = f"field `{field}`: `rows: {rows}` selects no row of a window of {length} rows"
    return error("D013", span, message, f"the rows of a window are 0 to {length - 1}")


def split_does_not_fit(span: Span, name: str, message: str) -> Diagnostic:
    """split-does-not-fit (D016)

    Finds: a set whose rows cannot be chosen: values are compared with a text or date of another type, rows cannot be
           sorted because values are missing, the column of a `stratified` set does not contain classes, or `of` names a
           source that does not exist.
    Why:   it is not defined which rows belong to the set.
    Diff:
        data:
    -     split: {validation: {type: where, column: label, equals: nine}}
    +     split: {validation: {type: where, column: label, equals: 9}}
    """
    return error("D016", span, f"the rows of `{name}` cannot be chosen: {message}")


def token_by_token(span: Span) -> Diagnostic:
    """token-by-token (D017)

    Finds: a text source without a window.
    Why:   every sample would be a single token, so there is no next token to predict.
    Diff:
        data:
          source: {type: text, path: data/people.csv}
    +     window: {length: 17, stride: 16}
          fields:
    -       tokens: {column: tokens}
    +       tokens: {column: tokens, rows: ":-1"}
    +       next: {column: tokens, rows: "1:"}
    +     split: {validation: {type: last, fraction: 0.2}}
    """
    return warning(
        "D017", span, "without a window every sample is one token", "add `window: {length: N + 1, stride: N}`"
    )


def lengths_do_not_fit(span: Span, message: str, help: str) -> Diagnostic:
    """lengths-do-not-fit (D028)

    Finds: `length: {buckets: ...}` of a field in one of these cases: another field has a different number of buckets;
           there is a `window`; the training set cannot be read in any order; bad rows are skipped while it is read.
    Why:   a batch is made from samples of one bucket: the first, the second, ... of each field. So all fields need the
           same number of buckets, and it must be possible to read the samples in any order.
    Diff:
        data:
          fields:
            chat: {length: {buckets: [21, 41]}}
    -       again: {type: tokens, column: messages, tokenizer: data/words, length: {buckets: [11, 21, 41]}}
    +       again: {type: tokens, column: messages, tokenizer: data/words, length: {buckets: [21, 41]}}
    """
    return error("D028", span, message, help)


def bucket_without_texts(span: Span, name: str, length: int, others: list[int]) -> Diagnostic:
    """bucket-without-texts (D029)

    Finds: a bucket of `length` in which there is no training sample.
    Why:   no batch has this length, so the bucket saves nothing. If it is the longest bucket, the model also has
           positions that no training text reaches.
    Diff:
        data:
          fields:
    -       chat: {length: {buckets: [4, 21, 41]}}
    +       chat: {length: {buckets: [21, 41]}}
    """
    message = f"no training sample of `{name}` is in the bucket of {length:,} tokens"
    left = f"`length: {{buckets: {others}}}`" if len(others) > 1 else f"`length: {others[0]}`"
    return warning("D029", span, message, f"write {left}; `dtrain data show` lists the lengths of the texts")


def rows_without_order(span: Span, column: str, message: str) -> Diagnostic:
    """rows-without-order (D018)

    Finds: a `window` with a `sort` column in which values are missing.
    Why:   a window consists of consecutive rows, and a row without a value has no position among the others.
    Diff:
        data:
          source: {type: csv, path: data/people.csv}
    -     window: {length: 2, stride: 1, sort: age}
    +     window: {length: 2, stride: 1, sort: height}
          split: {validation: {type: last, fraction: 0.5}}
    """
    return error("D018", span, f"the rows cannot be sorted by `{column}`: {message}")


_ISO = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")
_MONTH = re.compile(r"(?i)\b(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b")
_CHECKED_ROWS = 100_000


def sorted_as_text(span: Span, table: Table, column: str) -> Diagnostic | None:
    """sorted-as-text (D022)

    Finds: rows that are sorted by a column of text whose alphabetical order is probably not the intended one: dates
           that do not begin with the year, or numbers of different lengths.
    Why:   text is compared letter by letter, so 31/01 comes after 01/12, and 9 after 10. The last rows are then not the
           latest ones, and the rows of a window do not follow each other in time.
    Diff:
        data:
          source: {path: data/days.csv}
    -     split: {validation: {type: last, fraction: 0.25, sort: day}}
    +     split: {validation: {type: last, fraction: 0.25, sort: iso}}
    """
    # Return None if alphabetical order is probably the intended order.
    found = table.columns[column]
    if found.dtype != "object" or found.shape:
        return None
    values = table.read([column], slice(0, _CHECKED_ROWS))[column]
    present = np.unique(np.asarray([str(value) for value in values if value is not None], str)).tolist()
    if len(present) < 2 or all(_ISO.match(value) for value in present):
        return None
    shapes = {re.sub(r"\d", "0", value) for value in present}
    runs = re.findall("0+", max(shapes, key=len))
    is_date = any(_MONTH.search(value) for value in present) and bool(runs)
    if not runs or (len(shapes) == 1 and (len(runs) == 1 or len(runs[0]) >= 4) and not is_date):
        return None
    message = f"`{column}` is text, such as `{present[0]:.40}` and `{present[-1]:.40}`, and is sorted letter by letter"
    return warning("D022", span, message, "write dates as 2024-01-31, numbers as numbers")


def interleaved_windows(span: Span, table: Table, column: str) -> Diagnostic | None:
    """interleaved-windows (D023)

    Finds: a `window` without `by` whose `sort` column has the same value in several rows. The first 100,000 rows are
           checked.
    Why:   if, for example, two sensors were measured at the same times, their rows alternate, and every window has rows
           of both. The key `by` names the column that separates them.
    Diff:
        data:
          source: {path: data/days.csv}
    -     window: {length: 2, sort: x}
    +     window: {length: 2, sort: iso}
    """
    # Return None if all checked rows have different values.
    values = make_comparable(table.read([column], slice(0, _CHECKED_ROWS))[column])
    found, counts = np.unique(values, return_counts=True)
    if len(found) == len(values):
        return None
    often = int(np.argmax(counts))
    message = f"`{column}` is {found[often]} in {counts[often]:,} rows: windows sorted by it may mix several series"
    return warning("D023", span, message, "name the column that separates the series with `by`")


def value_unknown_to_run(
    span: Span, field: str, column: str, value: str, known: str, place: str, made: tuple[Related, ...]
) -> Diagnostic:
    """value-unknown-to-run (D030)

    Finds: a value of a category that had no class number in the earlier run whose weights the model loads
           (`model.weights`).
    Why:   class numbers are taken from the earlier run. Class numbers from the rows of this recipe would give each
           class the weights of another one.
    Diff:
        data:
          source: {type: csv, path: data/people.csv}
          fields:
            city: {type: category, column: city}
    -   model: {weights: earlier_people}
    +   model: {weights: {path: earlier_people, statistics: data}}
    """
    hint = "correct the value; or, for classes of its own, add `statistics: data` to model.weights"
    return error("D030", span, f"field `{field}`: `{column}` is {value} in {place}, but {known}", hint, made)


def field_of_another_run(span: Span, field: str, found: str, origin: str, weights: Span) -> Diagnostic:
    """field-of-another-run (D031)

    Finds: a field that converts its columns in another way than in the earlier run whose weights the model loads
           (`model.weights`): for example another `normalize`, other class numbers, or columns in another order.
    Why:   the model would get other numbers than in its training, and its predictions would be wrong without an error.
           For weights that are trained again on new statistics, `statistics: data` in `model.weights` computes them
           from the rows of this recipe.
    Diff:
        data:
          fields:
            pixels: {columns: "p*", normalize: minmax}
    -   model: {weights: earlier}
    +   model: {weights: {path: earlier, statistics: data}}
    """
    message = f"field `{field}`: {found} in {origin}, whose weights the model starts from"
    hint = "write it as it was, or add `statistics: data` to model.weights for new statistics and classes"
    return error("D031", span, message, hint, (Related(weights, f"the weights are those of {origin}"),))


def set_of_the_same_rows(span: Span, name: str, other: str, what: str, made: Span) -> Diagnostic:
    """set-of-the-same-rows (D032)

    Finds: a set with its own `source` that reads a file which training or another set reads too.
    Why:   if the model is trained on these rows, the loss of the set says nothing about new data. If two sets read the
           same file, the second one measures nothing new.
    Diff:
        data:
          source: {type: csv, path: data/digits.csv}
    -     split: {validation: {source: {type: csv, path: data/digits.csv}}}
    +     split: {validation: 0.2}
    """
    message = f"`{name}` reads {what}, as `{other}` does"
    hint = f"give `{name}` rows of its own: a file that nothing else reads, or a part of the source: `{name}: 0.1`"
    return error("D032", span, message, hint, (Related(made, f"the rows of `{other}`"),))


def set_without_class(span: Span, name: str, classes: str, hint: str) -> Diagnostic:
    """set-without-class (D033)

    Finds: a set without a row of some class of a target, if another set has such a row. Only sets in memory are
           checked.
    Why:   if an evaluated set lacks a class, metrics of this class, such as recall, are 0, 1 or nan whatever the model
           predicts. If the training set lacks a class, the model never learns it.
    Diff:
        data:
    -     split: {validation: {type: where, column: label, in: [3, 8]}}
    +     split: {validation: {type: stratified, fraction: 0.2, column: label}}
    """
    return warning("D033", span, f"`{name}` has no row {classes}", hint)


def set_of_one_answer(span: Span, name: str, what: str, metric: str) -> Diagnostic:
    """set-of-one-answer (D034)

    Finds: a set in which every row has the same value of a target, with a metric that needs different values: `auroc`
           and `average_precision` compare positive with negative rows, and `r2` compares the error with the variance of
           the target.
    Why:   the metric is nan in every evaluation of this set.
    Diff:
        data:
    -     split: {validation: {type: where, column: label, equals: 3}}
    +     split: {validation: {type: stratified, fraction: 0.2, column: label}}
        objective:
          metrics: {auroc: {}}
    """
    message = f"all rows of `{name}` have the same {what}, so `{metric}` is nan"
    return warning("D034", span, message, f"give `{name}` rows of other values, as `type: stratified` does")


def rows_skipped(span: Span, message: str) -> Diagnostic:
    """rows-skipped (D024)

    Finds: rows that are left out because the recipe sets `on_bad_row: skip`, as far as they can be found before a run.
    Why:   many such rows, or rows of one kind only, are often a sign of damaged files, and the model is trained without
           them.
    Diff:
        data:
          source: {type: csv, path: data/people.csv}
          on_bad_row: skip
          fields:
    -       age: {column: age}
    +       age: {column: age, missing: mean}
    """
    return warning("D024", span, message, "fix the files, or fill missing values of inputs: `missing: mean`")


def group_in_two_sets(
    table: Table, rows: Mapping[str, SetRows], splits: Mapping[str, Split], span: Callable[[str], Span]
) -> Iterator[Diagnostic]:
    """group-in-two-sets (D021)

    Finds: a `grouped` set that has rows of the same group as another set. This can happen if the other set is divided
           in another way: by value, as the last rows, or in groups of another column.
    Why:   rows of a group resemble each other, so the sets are not independent, and a metric of one set may be too
           good. A random set cannot share a group, because it is drawn from the rows that remain after the groups are
           taken out.
    Diff:
        data:
          split:
    -       test: {type: where, column: p20, at_least: 14}
    +       test: {type: where, column: label, in: [8, 9]}
            validation: {type: grouped, fraction: 0.2, column: label}
    """
    grouped = {name: str(split.columns[0]) for name, split in splits.items() if split.type == "grouped"}
    for name, column in grouped.items():
        # training is what is left; sets by chance are cut from what whole groups leave
        others = [other for other in rows if other not in (TRAINING, name) and not splits[other].cuts_singly]
        others = [other for other in others if grouped.get(other) != column]
        own = _groups(table, rows[name], column) if others else np.empty(0)
        for other in others:
            shared = np.intersect1d(own, _groups(table, rows[other], column))
            if len(shared):
                yield warning(
                    "D021",
                    span(f"data.split.{name}"),
                    f"{len(shared):,} of the {len(own):,} groups of `{name}` have rows in `{other}` too, such as "
                    f"`{column}` {shared[0]}",
                    f"cut `{other}` by `{column}` as well: `type: grouped`, or `type: where` with `column: {column}`",
                    (Related(span(f"data.split.{other}"), f"`{other}` is cut here"),),
                )


def _groups(table: Table, rows: SetRows, column: str) -> np.ndarray:
    return np.unique(make_comparable(table.read([column], rows.between(0, len(rows)))[column]))
