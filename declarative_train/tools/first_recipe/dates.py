"""Columns of dates: their format, and the parts of a date that a first recipe uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from declarative_train.components.data import BadValueError, Column
from declarative_train.packs.tables.date import DateField, read_part

if TYPE_CHECKING:
    import numpy as np

_LIKE_DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T]\d{1,2}:\d{2}.*)?")
_DAYS = ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%m-%d-%Y")
_TIMES = ("", " %H:%M", " %H:%M:%S")
_FORMATS: tuple[str | None, ...] = (None, *(day + time for day in _DAYS for time in _TIMES))
_COUNTED = re.compile(r"(?i:.*(time_?stamp|unix|epoch).*|ts|.*_ts)")
_SINCE_1970 = {"seconds": 1.0, "milliseconds": 1e3}  # numbers per second
_RECENT = (1e8, 4e9)  # seconds since 1970: 1973 to 2096


def is_like_date(text: str) -> bool:
    return _LIKE_DATE.fullmatch(text.strip()) is not None


def find_format(name: str, values: np.ndarray) -> tuple[str | None, str] | None:
    """Return how the dates in a column are written, as a pair (format, remark), or None if the column has no dates.
    `format`: value for the key `format` of a date field; None if the field does not need this key. The remark may be
    "".

    `name`: the column's name. `values`: its values except missing ones.
    """
    import numpy as np

    if values.dtype.kind == "M":
        return None, ""
    if values.dtype.kind in "iuf":
        least, greatest = (float(values.min()), float(values.max())) if _COUNTED.fullmatch(name) else (0.0, 0.0)
        for unit, scale in _SINCE_1970.items():
            if _RECENT[0] <= least / scale and greatest / scale <= _RECENT[1]:
                return unit, f"{unit} since 1970"
        return None
    if values.dtype != object:
        return None
    distinct = np.array(list(dict.fromkeys(values.tolist())), object)
    if sum(map(is_like_date, distinct[:1000])) <= 0.9 * len(distinct[:1000]):
        return None
    fitting = [each for each in _FORMATS if _reads(each, name, distinct[:1000])]
    fitting = [each for each in fitting if _reads(each, name, distinct)]
    if not fitting:
        return None
    if len(fitting) > 1 and fitting[0] is not None:
        return fitting[0], f"{fitting[1]} fits as well"
    return fitting[0], ""


def _reads(format: str | None, name: str, values: np.ndarray) -> bool:
    field = DateField.from_data({"type": "date", "column": name, "format": format})
    try:
        field.read_times(Column(name, "object"), values)
    except BadValueError:
        return False
    return True


def choose_parts(name: str, format: str | None, values: np.ndarray) -> tuple[str, ...]:
    """Return the parts of the dates in a column that a first recipe uses as inputs. `name`: the column. `format`: how
    its texts are read. `values`: its values, without missing ones.

    time             always
    yearday, month   if there are at least four months: `month` if there are few different days, else `yearday`
    weekday          if there are at least 14 days and different weekdays, and not all days are the first of a month
    hour             if the hours differ"""
    import numpy as np

    field = DateField.from_data({"type": "date", "column": name, "format": format})
    times = np.unique(field.read_times(Column(name, str(values.dtype)), values))
    days = np.unique(times.astype("datetime64[D]"))
    found = ["time"]
    months = np.unique(read_part("month", days))
    if len(months) >= 4:
        found.append("yearday" if len(np.unique(read_part("yearday", days))) > 2 * len(months) else "month")
    if len(days) >= 14 and len(np.unique(read_part("weekday", days))) > 1 and (read_part("day", days) != 1).any():
        found.append("weekday")
    if len(np.unique(read_part("hour", times))) > 1:
        found.append("hour")
    return tuple(found)
