"""Batch of one rank for one forward, its transfer between processes, and its copy to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from declarative_train.data.order import RankChunk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

SHARED_BYTES = 256 << 10  # larger tensors are sent through shared memory, which takes less than a millisecond


@dataclass(slots=True)  # not frozen: a frozen one takes twice as long to make
class Batch:
    """Rows for one forward of one rank. A batch is never changed.

    tensors      dict from field name to tensor (R, ...); R includes padding rows, which come last
    num_rows     rows that are samples; without a sample there is still padding
    row_weight   (R,) float32: 1 for a sample, 0 for padding; None without padding
    sample_ids   (num_rows,) int64, index of each sample in the set; in a mixture, `MixtureOrder.sample_numbers`
    epoch        training epoch, from 0; None in an evaluation
    """

    tensors: dict[str, torch.Tensor]
    num_rows: int
    row_weight: torch.Tensor | None
    sample_ids: np.ndarray
    epoch: int | None = None


Taken: TypeAlias = "tuple[np.ndarray, dict[str, torch.Tensor]]"
"""Sample numbers, and a dict from field name to the tensor of the samples."""
Take: TypeAlias = "Callable[[int | None, np.ndarray], Taken]"
"""Function (epoch, positions in the epoch) -> samples and tensors; the epoch is None in an evaluation."""


def pack_batch(batch: Batch) -> Batch:
    """Return the batch in a form that is pickled quickly: small tensors become numpy arrays."""
    return Batch({name: _pack_tensor(tensor) for name, tensor in batch.tensors.items()}, *_rest(batch))


def _pack_tensor(tensor: torch.Tensor) -> Any:
    import torch

    is_small = tensor.numel() * tensor.itemsize < SHARED_BYTES
    return tensor.numpy() if is_small and tensor.dtype != torch.bfloat16 else tensor  # NumPy has no bfloat16


def unpack_batch(batch: Batch) -> Batch:
    import torch

    tensors = {
        name: value if isinstance(value, torch.Tensor) else torch.from_numpy(value)
        for name, value in batch.tensors.items()
    }
    return Batch(tensors, *_rest(batch))


def _rest(batch: Batch) -> tuple[int, torch.Tensor | None, Any, int | None]:
    return batch.num_rows, batch.row_weight, batch.sample_ids, batch.epoch


def move_batch(batch: Batch, device: torch.device | None) -> Batch:
    if device is None:
        return batch
    weight = None if batch.row_weight is None else _move_tensor(batch.row_weight, device)
    return Batch(move_tensors(batch.tensors, device), batch.num_rows, weight, batch.sample_ids, batch.epoch)


def move_tensors(tensors: dict[str, torch.Tensor], device: torch.device | None) -> dict[str, torch.Tensor]:
    """Return the tensors copied to a device. Copies to a GPU go through pinned memory and are not waited for. A tensor
    that is already on a device is returned unchanged."""
    return tensors if device is None else {name: _move_tensor(tensor, device) for name, tensor in tensors.items()}


def _move_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if not tensor.is_cpu:
        return tensor
    # mps uses the memory of the host: pinned memory or an asynchronous copy would gain nothing
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def make_batches(chunks: Sequence[RankChunk], take: Take, epoch: int | None = None) -> list[Batch]:
    """Return one batch for each of `chunks`, the rows and padding that this rank computes at once.

    `take`: function that reads the rows of all chunks in one call, (epoch, positions) -> (sample ids as in `Batch`,
    tensors). `epoch`: the training epoch; None in an evaluation.
    """
    import torch

    positions = [positions_of(chunk) for chunk in chunks]
    ids, tensors = take(epoch, np.concatenate(positions))
    sizes = [len(each) for each in positions]
    pieces = [torch.split(tensor, sizes) for tensor in tensors.values()]
    batches = []
    start = 0
    for number, chunk in enumerate(chunks):
        row_weight = None
        if chunk.num_padding:
            row_weight = torch.zeros(sizes[number])
            row_weight[: chunk.num_rows] = 1
        values = {name: piece[number] for name, piece in zip(tensors, pieces, strict=True)}
        batches.append(Batch(values, chunk.num_rows, row_weight, ids[start : start + chunk.num_rows], epoch))
        start += sizes[number]
    return batches


def mask_rows(batch: Batch, skipped: np.ndarray) -> Batch:
    """Return a copy of the batch in which the rows `skipped` become padding: they get weight 0 and are moved to the
    end. `skipped` (num_rows,) bool: True for such a row."""
    import torch

    size = len(next(iter(batch.tensors.values())))
    good = np.flatnonzero(~skipped)
    index = torch.from_numpy(np.concatenate([good, np.flatnonzero(skipped), np.arange(len(skipped), size)]))
    row_weight = torch.zeros(size)
    row_weight[: len(good)] = 1
    tensors = {name: tensor.index_select(0, index) for name, tensor in batch.tensors.items()}
    return Batch(tensors, len(good), row_weight, batch.sample_ids[good], batch.epoch)


def positions_of(chunk: RankChunk) -> np.ndarray:
    return np.concatenate(
        [np.arange(chunk.start, chunk.start + chunk.num_rows), np.full(chunk.num_padding, chunk.filler, np.int64)]
    )
