"""Picture files for a first recipe: their sizes, their colour modes (such as `RGB`), and which of them cannot be
decoded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from declarative_train.components.data import BadValueError, Column, MissingPackageError, Table
from declarative_train.packs.images import ENDINGS
from declarative_train.packs.images.image import ImageField, pillow_image
from declarative_train.packs.images.image_folder import is_elsewhere
from declarative_train.tools.first_recipe.opening import UnusableError

_FEW = 50  # pictures of which the sizes are read first
_SMALL_BYTES = 64 << 20  # of files that are all decoded; of more, this number of pictures:
_MOST = 200
_AT_ONCE = 16
_GREY = frozenset({"1", "L", "LA", "I", "I;16", "I;16B", "I;16L", "F"})


@dataclass(frozen=True, slots=True)
class PictureFiles:
    """Facts about the picture files of a table. `number`: how many files there are. `looked_at`: how many of them were
    read. `sides`: width and height of each decoded file. `modes`: how many files have each of Pillow's modes. `broken`:
    files that cannot be decoded, as pairs (row of the table in words, reason). `mean`, `deviation`: mean and standard
    deviation of the grey values, from 0 to 1."""

    number: int
    looked_at: int
    sides: tuple[tuple[int, int], ...]
    modes: Counter[str]
    broken: tuple[tuple[str, str], ...]
    mean: float
    deviation: float

    @property
    def are_all_read(self) -> bool:
        return self.looked_at == self.number

    @property
    def are_grey(self) -> bool:
        return set(self.modes) <= _GREY

    @property
    def have_one_size(self) -> bool:
        return len(set(self.sides)) == 1

    @property
    def short_side(self) -> int:
        """Median of the pictures' shorter sides in pixels."""
        return sorted(map(min, self.sides))[len(self.sides) // 2]

    def in_words(self) -> str:
        least, greatest = min(self.sides, key=min), max(self.sides, key=max)
        size = f"{least[0]} x {least[1]}" + ("" if self.have_one_size else f" to {greatest[0]} x {greatest[1]}")
        several = len(self.modes) > 1
        modes = (f"{mode} ({count})" if several else mode for mode, count in self.modes.most_common())
        return f"{size} pixels (width x height), {', '.join(modes)}"


def look_at(table: Table, column: str, folder: str | None) -> PictureFiles:
    """Read the picture files whose names or contents are in the column `column`, and return facts about them. `folder`:
    the folder to which names are relative, or None. If there are many files, a sample is read, evenly spread over the
    table. Raises UnusableError."""
    import numpy as np

    number = table.num_rows
    field = ImageField.from_data({"type": "image", "column": column, "mode": "L", "folder": folder})
    rows = np.unique(np.linspace(0, number - 1, _FEW).astype(np.int64))
    if not any(map(is_elsewhere, table.files)):
        size = np.mean([_size_bytes(value, table.columns[column], field) for _, value in _values(table, column, rows)])
        rows = np.arange(number)
        if size * number > _SMALL_BYTES:
            rows = np.unique(np.linspace(0, number - 1, _MOST).astype(np.int64))
    sides: list[tuple[int, int]] = []
    modes: Counter[str] = Counter()
    broken: list[tuple[str, str]] = []
    sums = np.zeros(3)
    for row, value in _values(table, column, rows):
        try:
            side, mode = _header(value, table.columns[column], field)
            grey = field.numbers(field.decode_whole(value, table.columns[column], row)).astype(np.float64)
        except MissingPackageError as error:
            raise UnusableError(str(error)) from None
        except (BadValueError, OSError) as error:
            broken.append((table.place(row), str(error).rpartition(" cannot be decoded: ")[2]))
            continue
        sides.append(side)
        modes[mode] += 1
        sums += [1, grey.mean(), (grey**2).mean()]
    if not sides:
        raise UnusableError(f"no picture can be decoded (the first: {broken[0][0]}: {broken[0][1]})")
    mean = sums[1] / sums[0]
    deviation = float(max(sums[2] / sums[0] - mean**2, 0) ** 0.5) or 1.0
    return PictureFiles(number, len(rows), tuple(sides), modes, tuple(broken), float(mean), deviation)


def _size_bytes(value: Any, column: Column, field: ImageField) -> int:
    try:
        return field.size_bytes(value, column, 0)
    except (OSError, BadValueError):
        return 0


def _values(table: Table, column: str, rows: Any) -> Iterator[tuple[int, Any]]:
    for begin in range(0, len(rows), _AT_ONCE):
        chosen = rows[begin : begin + _AT_ONCE]
        yield from zip(chosen.tolist(), table.read([column], chosen)[column], strict=True)


def _header(value: Any, column: Column, field: ImageField) -> tuple[tuple[int, int], str]:
    """Return the size (width, height) and Pillow's mode of one picture, from the header of its file. `value`: path or
    bytes of the file; or an OSError from an earlier attempt to read it, which is raised. Raises OSError and
    MissingPackageError."""
    try:
        Image = pillow_image()
    except ImportError:
        field.check_header(value, column, 0)  # its message
        raise
    if isinstance(value, OSError):
        raise value
    if isinstance(value, str):
        value = value if os.path.isabs(value) or field.folder is None else os.path.join(field.folder, value)
    with Image.open(BytesIO(value) if isinstance(value, bytes) else value) as opened:
        return opened.size, opened.mode


def find_files_column(table: Table, folder: str, target: str) -> tuple[str, str] | None:
    """Find the column of a table that has paths of pictures. Return (name of the column, folder to which the paths are
    relative), or None if no column has such paths. The returned folder is `folder` or a folder directly in it.
    `target`: a column that is not considered. Raises UnusableError if none of the files exists."""
    import numpy as np

    rows = np.linspace(0, table.num_rows - 1, min(table.num_rows, _AT_ONCE)).astype(np.int64)
    for name, column in table.columns.items():
        if column.dtype != "object" or name == target:
            continue
        paths = [each for each in table.read([name], rows)[name] if each is not None]
        if not paths or not all(os.path.splitext(each)[1].lower() in ENDINGS for each in paths):
            continue
        roots = [folder, *sorted(each.path for each in os.scandir(folder) if each.is_dir())]
        found = max(roots, key=lambda root: sum(os.path.exists(os.path.join(root, each)) for each in paths))
        if not any(os.path.exists(os.path.join(found, each)) for each in paths):
            raise UnusableError(
                f"`{name}` names pictures such as `{paths[0]}`, which are neither in {folder} nor in a folder in it",
                "put the table next to the folder of its pictures",
            )
        return name, found
    return None
