"""Target column of a first recipe, and whether it contains classes or numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from declarative_train.components.data import LISTS, MESSAGES, Table
from declarative_train.components.fields.columns import is_glob
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.files.open_files import format_path
from declarative_train.tools.first_recipe.opening import UnusableError
from declarative_train.tools.first_recipe.values import ColumnValues, read_column

Task = Literal["classes", "numbers"]

LEAST_ROWS = 10
_MOST_NUMBERS_AS_CLASSES = 20
_MOST_CLASSES = 1000
_IMBALANCE = 4.0  # ratio of the largest class to the smallest
_TAILS = 10.0  # from this kurtosis on, a few values dominate a squared error
_SKEW = 0.3  # from this asymmetry of the 10% and 90% quantiles on, values are skewed


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """Target column. `task`: whether its values are classes or numbers. `why`: how the task was found out, in words.
    `classes`: the number of rows of each class, in the order of class numbers. It is empty if the values are numbers.
    """

    values: ColumnValues
    task: Task
    why: str
    classes: Counter[object]

    @property
    def name(self) -> str:
        return self.values.name

    @property
    def imbalance(self) -> float:
        return max(self.classes.values()) / min(self.classes.values()) if self.classes else 1.0

    @property
    def is_imbalanced(self) -> bool:
        return self.imbalance >= _IMBALANCE

    @property
    def empty_classes(self) -> list[int]:
        """Missing class numbers: whole numbers between the smallest and the largest class that no row has. Empty if the
        classes are not numbers, or if there are as many missing numbers as classes or more."""
        if not self.classes or self.values.is_text or self.values.column.dtype == "bool":
            return []
        found = {int(str(float(str(each))).partition(".")[0]) for each in self.classes}
        empty = [each for each in range(min(found), max(found)) if each not in found]
        return empty if len(empty) < len(found) else []

    @property
    def has_tails(self) -> bool:
        import numpy as np

        numbers = self.values.values[self.values.present].astype(np.float64)
        apart = (numbers - numbers.mean()) / (numbers.std() or 1.0)
        return self.task == "numbers" and bool((apart**4).mean() > _TAILS)

    @property
    def is_skewed(self) -> bool:
        """True if the values are numbers that reach much farther from the median on one side than on the other, as
        prices do. The farthest tenth on each side is not considered."""
        import numpy as np

        least, median, most = np.quantile(self.values.values[self.values.present].astype(np.float64), (0.1, 0.5, 0.9))
        return self.task == "numbers" and bool(abs(least + most - 2 * median) >= _SKEW * (most - least))


def read_target(table: Table, name: str, path: str, asked: Task | None) -> TargetColumn:
    """Read the target column. `asked`: the task that the user requested; None: the values decide. Raises UnusableError
    and SourceError."""
    if name not in table.columns:
        if name in table.left_out:
            raise UnusableError(f"the column `{name}` of {format_path(path)} cannot be read: {table.left_out[name]}")
        words = did_you_mean(name, table.columns)
        raise UnusableError(f"{format_path(path)} has no column `{name}`", words, is_word=True)
    if is_glob(name):
        raise UnusableError(f"the name `{name}` of a target cannot hold `*`, `?` or `[`", "rename it in the file")
    values = read_column(table, name)
    _check(table, values, format_path(path))
    task, why = _task(values) if asked is None else (asked, f"as given by --task {asked}")
    _check_task(values, task)
    classes = Counter({each: values.words[each] for each in sorted(values.words)}) if task == "classes" else Counter()
    return TargetColumn(values, task, why, classes)


def _check(table: Table, values: ColumnValues, where: str) -> None:
    import numpy as np

    name, column = values.name, values.column
    if table.num_rows < LEAST_ROWS:
        raise UnusableError(f"{where} has {format_count(table.num_rows, 'row')}: too few to train and to evaluate")
    if column.dtype.startswith("datetime") or column.shape:
        held = "dates" if not column.shape else "lists of numbers"
        raise UnusableError(f"`{name}` contains {held}, and a target must be a number or a class", is_word=True)
    if column.dtype in (MESSAGES, LISTS):
        held = "lists of messages" if column.dtype == MESSAGES else "lists"
        message = f"`{name}` contains {held}, and a target must be a number or a class"
        raise UnusableError(message, is_word=True)
    if not values.words:
        raise UnusableError(f"`{name}` has no value in any row of {where}")
    if values.num_missing:
        first = int(np.flatnonzero(~values.present)[0])
        place = table.place(first) if len(values.values) == table.num_rows else "one of them"
        raise UnusableError(
            f"`{name}` is missing in {format_count(values.num_missing, 'row')} (the first: {place}): training cannot "
            "use them",
            "write a file without these rows",
        )
    if len(values.words) == 1:
        only = next(iter(values.words))
        raise UnusableError(f"`{name}` is `{only}` in every row of {where}: there is nothing to learn")
    if values.values.dtype.kind == "f" and np.isinf(values.values).any():
        raise UnusableError(
            f"`{name}` is infinite in {format_count(int(np.isinf(values.values).sum()), 'row')} of {where}"
        )


def _task(values: ColumnValues) -> tuple[Task, str]:
    num_values, num_rows = len(values.words), values.words.total()
    if values.is_text or values.column.dtype == "bool":
        return "classes", format_count(num_values, "class")
    if not values.is_whole:
        return "numbers", "numbers with fractions"
    if num_values == 2 or (num_values <= _MOST_NUMBERS_AS_CLASSES and num_rows >= 5 * num_values):
        return "classes", f"{num_values} different whole numbers, used as classes: `--task numbers` for amounts"
    return "numbers", f"{num_values:,} different whole numbers"


def _check_task(values: ColumnValues, task: Task) -> None:
    num_values = len(values.words)
    if task == "numbers" and (values.is_text or values.column.dtype == "bool"):
        raise UnusableError(
            f"`{values.name}` contains {'text' if values.is_text else 'yes and no'}, not numbers", is_word=True
        )
    if task == "classes" and not values.is_text and not values.is_whole:
        raise UnusableError(f"`{values.name}` contains fractions, not classes", "`--task numbers`", is_word=True)
    if task == "classes" and num_values > min(_MOST_CLASSES, max(2, values.words.total() // 2)):
        raise UnusableError(
            f"`{values.name}` has {num_values:,} different values in {values.words.total():,} rows: too many classes",
            None if values.is_text else "`--task numbers`",
        )
