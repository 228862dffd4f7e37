"""The training rows -> what each field must know of them: means, extremes, vocabularies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from declarative_train.components.component import BadValueError, SourceError, Table
from declarative_train.data.parts import Part, column_names
from declarative_train.data.prepare import BadSampleError, chunk_rows
from declarative_train.data.rows import Rows

Problem = BadSampleError | SourceError | ValueError


def measure(
    table: Table, training: Rows, parts: Sequence[Part]
) -> tuple[dict[str, dict[str, object]], dict[str, Problem]]:
    """Statistics by field, in one pass over the rows, and what went wrong with which field."""
    tallies = {part.name: tally for part in parts if (tally := part.field.tally(part.columns)) is not None}
    counted = [part for part in parts if part.name in tallies]
    problems: dict[str, Problem] = {}
    for start, numbers in training.chunks(chunk_rows(counted)) if counted else ():
        try:
            read = table.read(column_names(counted), numbers)
        except SourceError as error:
            return {part.name: {} for part in parts}, {part.name: error for part in counted}
        for part in counted:
            if part.name in problems:
                continue
            try:
                tallies[part.name].add([read[column.name] for column in part.columns])
            except BadValueError as error:
                row = int(training.at(np.asarray([start + error.row]))[0])
                problems[part.name] = BadSampleError(part, row, error)
            except ValueError as error:
                problems[part.name] = error
    statistics: dict[str, dict[str, object]] = {part.name: {} for part in parts}
    for name in tallies.keys() - problems.keys():
        try:
            statistics[name] = tallies[name].result()
        except ValueError as error:
            problems[name] = error
    return statistics, problems
