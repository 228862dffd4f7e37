"""Sets of samples as tensors. A set that is in memory copies rows of its tensors; any other set reads the rows that
are requested."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.batch import Batch
from declarative_train.data.field_reader import BadSampleError
from declarative_train.data.prepared_set import HOLD_BYTES, PreparedSet
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.data.spec import DataError, DataSpec
from declarative_train.files.paths import SourceError


class SampleSet(ABC):
    """Interface of a set of samples, whose indices are 0 to num_samples - 1."""

    num_samples: int
    prepared: PreparedSet
    is_held: bool  # `gather` copies from memory and reads no file
    sample_bytes: int  # size of one sample in a batch, with all fields
    held_bytes: int = 0  # size of all rows, if the set is in memory
    may_keep: bool = False  # the batches of an evaluation may stay in memory for the next evaluation
    kept: dict[object, list[Batch]]

    @abstractmethod
    def gather(self, indices: np.ndarray, epoch: int | None = None) -> dict[str, torch.Tensor]:
        """Return a dict from field name to tensor (N, *sample shape), for the samples with these `indices`. The tensors
        are contiguous and have the dtype of the field.

        `epoch`: the training epoch, None in an evaluation; random transforms of images are used only in training.
        Raises DataError.
        """

    @abstractmethod
    def to(self, device: torch.device) -> SampleSet:
        """Return the set with its tensors on a device. A set whose values are not in memory is returned unchanged."""


class HeldSet(SampleSet):
    """Set of samples in memory. It has one tensor per field with the values of all rows. If samples are windows of
    several rows, they are overlapping views of this tensor."""

    is_held = True

    def __init__(self, prepared: PreparedSet, device: torch.device | None = None) -> None:
        assert prepared.held is not None
        self.num_samples = prepared.num_samples
        self.prepared = prepared
        self._windows = prepared.windows
        self._device = device
        self._fields: dict[str, tuple[torch.Tensor, torch.dtype]] = {}
        for reader in prepared.readers:
            rows = as_tensor(prepared.held[reader.name])
            if reader.row.dtype == "bfloat16":
                rows = rows.to(torch.bfloat16)
            rows = rows if device is None else rows.to(device)
            if self._windows is not None:
                rows = overlapping(rows, self._windows.length)[:, reader.cut]
            self._fields[reader.name] = (rows, dtype_of(reader.sample))
        self.sample_bytes = _sample_bytes(prepared)
        self.held_bytes = prepared.held_bytes

    def gather(self, indices: np.ndarray, epoch: int | None = None) -> dict[str, torch.Tensor]:
        first_rows = indices if self._windows is None else self._windows.starts(indices)
        index = torch.from_numpy(np.ascontiguousarray(first_rows, np.int64))
        if self._device is not None:
            index = index.to(self._device, non_blocking=self._device.type == "cuda")
        found = {}
        for name, (rows, dtype) in self._fields.items():
            values = rows.index_select(0, index)
            found[name] = values if values.dtype == dtype else values.to(dtype)
        return found

    def to(self, device: torch.device) -> SampleSet:
        return HeldSet(self.prepared, device)


class ReadSet(SampleSet):
    """Set that is too large for memory, or has lazy fields (images). Samples are read and converted when a batch needs
    them."""

    is_held = False

    def __init__(self, prepared: PreparedSet) -> None:
        self.num_samples = prepared.num_samples
        self.prepared = prepared
        size = prepared.size_bytes
        self.may_keep = not prepared.lazy and size is not None and size <= HOLD_BYTES
        self.kept = {}
        self._dtypes = {reader.name: dtype_of(reader.sample) for reader in prepared.readers}
        self.sample_bytes = _sample_bytes(prepared)

    def gather(self, indices: np.ndarray, epoch: int | None = None) -> dict[str, torch.Tensor]:
        with as_data_error(self.prepared):
            values = self.prepared.gather(indices, epoch=epoch)
        return {name: as_tensor(array).to(self._dtypes[name]) for name, array in values.items()}

    def to(self, device: torch.device) -> SampleSet:
        return self


@contextmanager
def as_data_error(prepared: PreparedSet) -> Iterator[None]:
    """Convert errors of reading a set in the `with` block into DataError, which names the set and the row."""
    try:
        yield
    except BadSampleError as error:
        place = prepared.table.place(error.row)
        raise DataError(f"set `{prepared.name}`: {error}, in {place}") from error
    except SourceError as error:
        raise DataError(f"set `{prepared.name}`: {error}") from error


def open_sets(spec: DataSpec) -> dict[str, SampleSet]:
    """Return every set by name, `training` first. Raises DataError if the data differ from the spec."""
    return {name: of_prepared(prepared) for name, prepared in prepare_sets(spec).items()}


def of_prepared(prepared: PreparedSet) -> SampleSet:
    return HeldSet(prepared) if prepared.is_held else ReadSet(prepared)


def as_tensor(array: np.ndarray) -> torch.Tensor:
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns of read-only memory


def overlapping(rows: torch.Tensor, length: int) -> torch.Tensor:
    """Return a view (N - length + 1, length, ...) of `rows`, without a copy. Entry k has the rows k to k + length -
    1."""
    count = max(len(rows) - length + 1, 0)
    return rows.as_strided((count, length, *rows.shape[1:]), (rows.stride(0), *rows.stride()))


def dtype_of(spec: TensorSpec) -> torch.dtype:
    found: torch.dtype = getattr(torch, spec.dtype)
    return found


def _sample_bytes(prepared: PreparedSet) -> int:
    return sum(reader.sample.num_elements * dtype_of(reader.sample).itemsize for reader in prepared.readers)
