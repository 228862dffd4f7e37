"""Warnings about rows: similar rows in two sets, a category that differs in nearly every row, neighbours in time in two
sets, rows sorted by class, and files with the newest row first.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.core.span import Span


def rows_in_two_sets(span: Span, name: str, num_shared: int, num_rows: int, *, has_own_source: bool) -> Diagnostic:
    """rows-in-two-sets (D035)

    Finds: a set of which at least a fifth of the samples also occur in the training set, with equal values in all
           fields. It is not reported if the fields have so few different values that samples are equal by chance, or if
           the sets are not in memory.
    Why:   the model is trained on these samples, so the set measures what the model has memorised. This happens if rows
           occur twice in a file that is divided at random, or if the set is a copy of the training file.
    Diff:
        data:
          source: {type: csv, path: data/table.csv}
          fields:
            size: {columns: [a, b, c]}
            years: {columns: [y]}
    -     split: {validation: {source: {type: csv, path: data/table_copy.csv}}}
    +     split: {validation: 0.2}
    """
    message = f"{num_shared:,} of {num_rows:,} samples of `{name}` are also in the training set, with the same values"
    hint = "remove repeated rows from the file, or keep them together: `type: grouped`"
    if has_own_source:
        hint = "remove these rows from one of the two files"
    return warning("D035", span, message, hint)


def category_of_rows(span: Span, field: str, column: str, num_values: int, num_rows: int) -> Diagnostic:
    """category-of-rows (D036)

    Finds: a category with at least 9 different values per 10 training rows, such as the id of a customer. Only training
           rows in memory are checked, and only if there are at least 20.
    Why:   each class has one row, so an embedding memorises the training rows and is useless for new ones.
    Diff:
        data:
          source: {type: csv, path: data/table.csv}
          fields:
            size: {columns: [a, b, c]}
            years: {columns: [y]}
    -       who: {type: category, column: name}
    +       who: {type: category, column: city}
        model:
          graph:
            code: {type: embedding, embedding_dim: 4, input: who}
            both: concat(size, code)
            hidden: {input: both}
    """
    message = f"`{column}` has {num_values:,} values in {num_rows:,} training rows: a class for nearly every row"
    return warning("D036", span, message, f"leave `{field}` out, or use a column whose values occur many times")


def neighbours_in_two_sets(span: Span, name: str, column: str, target: str, correlation: float) -> Diagnostic:
    """neighbours-in-two-sets (D037)

    Finds: a `random` or `stratified` set of a table whose rows are in the order of time, if the target of a loss hardly
           changes from one row to the next (a correlation of at least 0.8). A column of times is recognised by its
           name, such as `date` or `timestamp`.
    Why:   each row of the set is between two training rows with nearly the same target, so the metrics of the set look
           too good. The new rows for which the model is made have no such neighbours.
    Diff:
        data:
          source: {type: csv, path: data/table.csv}
          fields:
            size: {columns: [a, b, c]}
            years: {columns: [level]}
    -     split: {validation: 0.2}
    +     split: {validation: {type: last, fraction: 0.2}}
    """
    message = (
        f"`{name}` has random rows of a file in the order of `{column}`, where `{target}` hardly changes from row to "
        f"row (correlation {correlation:.2f})"
    )
    return warning("D037", span, message, f"`{name}: {{type: last, fraction: 0.2}}` takes the latest rows")


def sorted_by_class(span: Span, target: str, num_runs: int | None, num_rows: int) -> Diagnostic:
    """sorted-by-class (D038)

    Finds: `shuffle: false`, if the training rows are sorted by the class to predict, or nearly: the class changes less
           than a tenth as often as in a random order. Also, if the number to predict never falls, or never rises.
    Why:   each batch then has rows of only one or two classes, or similar numbers, and the model learns to predict
           those of the latest batches.
    Diff:
        data:
          source: {type: csv, path: data/table.csv}
          fields:
            size: {columns: [a, b, c]}
            years: null
            kind: {type: category, column: sorted}
    -     shuffle: false
    +     shuffle: true
        model: {graph: {logits: {out_features: 4}}}
        objective:
          loss: {type: cross_entropy, input: logits, target: kind}
          metrics: {mae: null, accuracy: {}}
    """
    runs = "" if num_runs is None else f": {num_rows:,} rows have {num_runs:,} runs of one class"
    message = f"`shuffle: false`, but rows are sorted by `{target}`{runs}"
    return warning("D038", span, message, "remove `shuffle: false`")


def newest_first(span: Span, column: str, effect: str, key: str) -> Diagnostic:
    """newest-first (D045)

    Finds: a `window`, or a set of `type: last`, that takes rows in the order of the file, if a column of times falls
           from row to row. A column of times is recognised by its name, such as `date` or `timestamp`.
    Why:   many sites export a table with its newest row first. Windows then run backwards, so that a forecast is one of
           the past; and the last rows are the oldest ones.
    Diff:
        # file: recipe.yaml
        extends: base.yaml
        data:
          source: {path: houses.csv}
          fields:
            pixels: {columns: [rooms]}
            digit: {column: kind}
    -     split: {validation: {type: last, fraction: 0.2}}
    +     split: {validation: {type: last, fraction: 0.2, sort: year}}
        # file: houses.csv
        year,rooms,kind
        2024,3,1
        2023,5,0
        2022,4,2
        2021,3,0
        2020,2,1
        2019,4,0
        2018,5,2
        2017,3,0
        2016,2,1
        2015,1,0
        2014,4,1
        2013,5,0
        2012,3,1
        2011,2,2
        2010,1,1
        2009,4,0
        2008,5,1
        2007,3,2
        2006,2,0
        2005,1,1
        2004,4,2
    """
    message = f"rows go from the newest to the oldest by `{column}`, so {effect}"
    return warning("D045", span, message, f"sort them: add `sort: {column}` to `{key}`")
