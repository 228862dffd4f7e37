"""Use of each column of a table in a first recipe: as a number, a category, a date, or not at all, with the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from declarative_train.components.data import LISTS, MESSAGES, Table
from declarative_train.core.amounts import format_count
from declarative_train.tools.first_recipe.dates import choose_parts, find_format, is_like_date
from declarative_train.tools.first_recipe.doubts import doubt_of
from declarative_train.tools.first_recipe.values import ColumnValues, read_column

Use = Literal["numbers", "categories", "dates", "left out"]

MOST_WORDS = 100  # distinct words of a column; rarer ones share the class of unknown words
_LEAST_PRESENT = 0.1
_ID = re.compile(
    r"(?i:|unnamed:? ?\d*|index|(.*[_ .-])?(id|idx|uuid|guid|key|rownum|row_?(id|no|number|index)))|.*[a-z]I[dD]"
)
_FREE_TEXT = 60  # a column whose median value has more letters is free text


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """Use of a table's column in a recipe that `dtrain init` writes. `why`: why the column is left out, or a remark.
    `num_words`: number of different texts in a column of categories. `format`, `parts`: values of these keys of a date
    field. `doubt`: why the user should check the use of the column; "" if there is no doubt."""

    name: str
    use: Use
    why: str = ""
    num_words: int = 0
    num_missing: int = 0
    format: str | None = None
    parts: tuple[str, ...] = ()
    doubt: str = ""


def judge(table: Table, target: ColumnValues) -> Iterator[ColumnUse]:
    """Yield how a first recipe uses each column of the table except the target. Unreadable columns come last."""
    for name, column in table.columns.items():
        if column.dtype == "bytes":
            yield ColumnUse(name, "left out", "files: images need a field of `type: image`")
        elif column.dtype == MESSAGES:
            yield ColumnUse(name, "left out", "lists of messages: dialogues need a field of `type: tokens`")
        elif column.dtype == LISTS:
            yield ColumnUse(
                name, "left out", "lists of lists or of texts: boxes of images need a field of `type: boxes`"
            )
        elif name != target.name:
            yield _judge_one(read_column(table, name), target)
    for name, why in table.left_out.items():
        yield ColumnUse(name, "left out", why)


def _judge_one(each: ColumnValues, target: ColumnValues) -> ColumnUse:
    why = _explain_id(each) or _explain_unusable(each) or _explain_repeat(each, target)
    if why:
        return ColumnUse(each.name, "left out", why)
    if len(each.words) > 1 and (dates := find_format(each.name, each.values[each.present])) is not None:
        parts = choose_parts(each.name, dates[0], each.values[each.present])
        return ColumnUse(each.name, "dates", dates[1], 0, each.num_missing, dates[0], parts)
    doubt = doubt_of(each, target)
    if not each.is_text:
        return ColumnUse(each.name, "numbers", num_missing=each.num_missing, doubt=doubt)
    num_words = len(each.words)
    note = ""
    if num_words > MOST_WORDS:
        covered = sum(count for _, count in each.words.most_common(MOST_WORDS)) / each.words.total()
        if covered < 0.5:
            return ColumnUse(each.name, "left out", f"text with {num_words:,} different values")
        note = f"the {MOST_WORDS} most frequent of {num_words:,} different values"
    return ColumnUse(each.name, "categories", note, num_words, each.num_missing, doubt=doubt)


def _explain_unusable(each: ColumnValues) -> str:
    """Return the reason why a network cannot use the column `each`, or "" if it can."""
    import numpy as np

    rows = len(each.values)
    if each.column.shape:
        return f"lists of {'x'.join(map(str, each.column.shape))} numbers: they need a field of their own"
    if not each.words:
        return "no row has a value"
    if len(each.words) == 1:
        value = next(iter(each.words))
        return f"always {_format_value(value)}" + (", or missing" if each.num_missing else "")
    if each.present.sum() < _LEAST_PRESENT * rows:
        return f"missing in {each.num_missing / rows:.0%} of the rows"
    if not each.is_text and each.values.dtype.kind == "f" and np.isinf(each.values).any():
        return f"infinite in {format_count(int(np.isinf(each.values).sum()), 'row')}"
    if each.is_text:
        return _explain_no_word(each)
    return ""


def _explain_no_word(each: ColumnValues) -> str:
    """Return the reason why a column of texts cannot be used as a category, for example "free text". Return "" if it
    can be used as a category, or as a date."""
    several = list(each.words)[:1000]
    if find_format(each.name, each.values[each.present]) is not None:
        return ""
    if sum(map(is_like_date, several)) > 0.9 * len(several):
        return 'dates in several formats, or in an unusual one: `type: date` with `format: "%d.%m.%Y"` reads one'
    if sorted(map(len, several))[len(several) // 2] > _FREE_TEXT:
        return "free text"
    if len(each.words) > 20 and len(each.words) > 0.5 * each.words.total():
        return f"text, and {len(each.words):,} of {each.words.total():,} rows have a different one"
    return ""


def _explain_id(each: ColumnValues) -> str:
    """Return the reason why the column `each` seems to identify the row, or the object that the row describes. Return
    "" if there is no such reason."""
    import numpy as np

    rows = each.words.total()
    named = _ID.fullmatch(each.name) is not None
    if named and len(each.words) > 2 and (each.is_text or each.is_whole):
        if len(each.words) == rows:
            return "an id: it differs in each row"
        if len(each.words) * 20 > rows:
            return _shared(each.name, "an id that rows share")
        return "an id, by its name"
    if each.values.dtype.kind in "iuf" and each.is_whole and len(each.words) == rows >= 20:
        whole = each.values[each.present]
        if (np.diff(whole) > 0).all() and whole[-1] - whole[0] < 2 * len(whole):
            return "it counts the rows"
    if _counts_groups(each):
        return _shared(each.name, "it counts groups of rows")
    return ""


def _shared(name: str, what: str) -> str:
    return f"{what}; if new rows will have other ones, split by it: {{type: grouped, fraction: 0.2, column: {name}}}"


def _counts_groups(each: ColumnValues) -> bool:
    """Return whether the column `each` numbers groups of consecutive rows, such as 1, 1, 1, 2, 2, 3. There must be at
    least 20 groups, with fewer than 20 rows on average."""
    import numpy as np

    rows = each.words.total()
    if each.values.dtype.kind not in "iuf" or not each.is_whole or not 20 <= len(each.words) < rows:
        return False
    whole = each.values[each.present]
    steps = np.diff(whole)
    return bool(whole[0] in (0, 1) and np.isin(steps, (0, 1)).all() and len(each.words) * 20 > rows)


def _explain_repeat(each: ColumnValues, target: ColumnValues) -> str:
    """Return why the column `each` seems to be the target in another form, or "" if it does not. A model must not read
    such a column, because its values are unknown when the target is to be predicted."""
    import numpy as np

    both = each.present & target.present
    if both.sum() < 20:
        return ""
    if len(target.words) <= MOST_WORDS and 1 < len(each.words) <= MOST_WORDS:
        pairs = set(zip(each.values[both].tolist(), target.values[both].tolist(), strict=True))
        if len(pairs) == len(each.words) == len(target.words):
            return f"it repeats `{target.name}`: each of its values belongs to one of the target"
    if each.is_text or target.is_text or len(target.words) <= 2:
        return ""
    one, other = (found.values[both].astype(np.float64) for found in (each, target))
    if not (np.isfinite(one).all() and np.isfinite(other).all()) or one.std() == 0 or other.std() == 0:
        return ""
    if abs(np.corrcoef(one, other)[0, 1]) > 1 - 1e-9:
        return f"it repeats `{target.name}`: one is a multiple of the other"
    return ""


def _format_value(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value).lower()
