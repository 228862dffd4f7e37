"""Samples for checks: real samples of every set, read field by field as needed, to test values before the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from declarative_train.data.fields import BadSampleError
from declarative_train.data.materialize import PreparedSet
from declarative_train.data.prepared_sets import prepare_sets
from declarative_train.data.spec import DataSpec
from declarative_train.files.paths import SourceError

MOST_ROWS = 1 << 16
MOST_ELEMENTS = 1 << 22
"""Largest number of elements of a field, so that an operation on it takes no noticeable time."""
MOST_READ = 1 << 12
"""Largest number of samples of a set that is not in memory, which are read for this alone."""

_MOST_COLUMNS = 64  # of a field whose extremes are looked for: an image has them everywhere


class Sample:
    """Rows of the training set first, then of the others in the order of the recipe. `is_whole`: they are all samples
    of all sets; `num_training` of them belong to the training set.
    """

    def __init__(self, sets: Sequence[PreparedSet], most: int) -> None:
        self._sets = sets
        self._samples = [_choose_samples(each, most if number == 0 else most // 4) for number, each in enumerate(sets)]
        self.num_rows = sum(map(len, self._samples))
        self.num_training = len(self._samples[0])
        self.is_whole = all(len(chosen) == each.num_samples for chosen, each in zip(self._samples, sets, strict=True))
        self.has_all_training = self.num_training == sets[0].num_samples
        self._values: dict[str, np.ndarray | None] = {}

    def first(self, name: str, num_rows: int) -> np.ndarray | None:
        """Return the values of the first training samples."""
        if name in self._values:
            found = self._values[name]
            return None if found is None else found[: min(num_rows, self.num_training)]
        if self._is_late(name):
            return None
        try:
            return self._sets[0].gather(self._samples[0][:num_rows], [name])[name]
        except (SourceError, BadSampleError):
            return None

    def pick_extremes(self, names: Sequence[str], num_rows: int, most: int) -> dict[str, np.ndarray | None]:
        """Return the first training samples, and up to `most` others with extreme values.

        A value is extreme if it is the least, the greatest, or the closest to zero in a field: there, logarithms,
        roots and divisions fail first. Of a set that is not in memory, only the first samples are returned.
        """
        if self._sets[0].held is None:
            return {name: self.first(name, num_rows) for name in names}
        found = {name: self.values(name) for name in names}
        chosen = list(range(min(num_rows, self.num_training)))
        extremes = [row for values in found.values() if values is not None for row in self._extremes(values)]
        chosen += [row for row in dict.fromkeys(extremes) if row not in chosen][:most]
        return {name: None if values is None else values[chosen] for name, values in found.items()}

    def _extremes(self, values: np.ndarray) -> Iterator[int]:
        if values.dtype.kind not in "iuf" or not self.num_training or values[0].size > _MOST_COLUMNS:
            return
        columns = values[: self.num_training].reshape(self.num_training, -1)
        for column in columns.T:
            yield from (int(np.argmin(column)), int(np.argmax(column)), int(np.argmin(np.abs(column))))

    def values(self, name: str) -> np.ndarray | None:
        """Return (N, *sample shape) of a field; None if it cannot be read now, or is of images."""
        if name not in self._values and self._is_late(name):
            self._values[name] = None
        if name not in self._values:
            try:
                parts = [
                    each.gather(chosen, [name])[name] for each, chosen in zip(self._sets, self._samples, strict=True)
                ]
                self._values[name] = np.concatenate(parts)
            except (SourceError, BadSampleError):  # the file changed meanwhile: the run reports it
                self._values[name] = None
        return self._values[name]

    def _is_late(self, name: str) -> bool:
        """Return whether the field is of images, which take too long to decode."""
        return any(part.name == name and part.field.reads_late for part in self._sets[0].parts)

    def place(self, row: int) -> str:
        """Return the place of a row of the sample, for messages; for a window, that of its first row."""
        for each, chosen in zip(self._sets, self._samples, strict=True):
            if row < len(chosen):
                places = chosen[row : row + 1]
                if each.windows is not None:
                    places = each.windows.starts(places)
                where = each.table.place(int(each.rows.at(places)[0]))
                return where if each.name == "training" else f"{where}, in {each.name}"
            row -= len(chosen)
        raise IndexError(row)


def sample(spec: DataSpec) -> Sample:
    """Return a sample of the sets that `describe` has prepared. Raises DataError."""
    sets: Mapping[str, PreparedSet] = prepare_sets(spec)
    largest = max((field.tensor.num_elements for field in spec.fields), default=1)
    return Sample(tuple(sets.values()), max(16, min(MOST_ROWS, MOST_ELEMENTS // max(largest, 1))))


def _choose_samples(each: PreparedSet, most: int) -> np.ndarray:
    """Return ascending sample numbers: all, or spread over the set; the first ones if they have to be read."""
    if each.held is None:
        return np.arange(min(each.num_samples, most, MOST_READ))
    if each.num_samples <= most:
        return np.arange(each.num_samples)
    return np.linspace(0, each.num_samples - 1, most).astype(np.int64)
