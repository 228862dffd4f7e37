"""Transforms that mix pairs of samples in training batches: `mixup` and `cutmix`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from declarative_train.components.component import ShapeError
from declarative_train.components.counter_rng import key_of, uniform
from declarative_train.components.fields import FIELDS
from declarative_train.components.transform import Transform
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.components.transforms.pairs import PairTransform
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.batch import Batch
from declarative_train.data.spec import DataSpec

if TYPE_CHECKING:
    import torch


def of_pairs(transforms: Sequence[Transform]) -> Iterator[tuple[int, PairTransform]]:
    """Yield (index in the list, transform) for the transforms that mix pairs of samples."""
    for number, transform in enumerate(transforms):
        if isinstance(transform, PairTransform):
            yield number, transform


def mixing_types(spec: DataSpec) -> Iterator[tuple[int, str]]:
    """Yield (index among the transforms, type) for each transform of a DataSpec that mixes pairs of samples."""
    for number, each in enumerate(spec.transforms):
        if each["type"] in TRANSFORMS and TRANSFORMS[str(each["type"])].of_pairs:
            yield number, str(each["type"])


@dataclass(frozen=True, slots=True)
class PairMixer:
    """Executor of the transforms that mix pairs of samples. `entries`: (index in the list of all transforms,
    transform). `fields`: for each entry, the image fields that its transform changes. (It also changes the labels.)"""

    entries: tuple[tuple[int, PairTransform], ...]
    fields: tuple[tuple[str, ...], ...]
    seed: int

    @classmethod
    def of(cls, spec: DataSpec) -> PairMixer | None:
        """Return the mixer for the transforms in `spec`; None if none of them mixes pairs. Raises ComponentError."""
        entries = tuple(of_pairs([TRANSFORMS.read(each) for each in spec.transforms]))
        if not entries:
            return None
        lazy = {field.name: FIELDS.read(field.component) for field in spec.fields}
        pictures = tuple(name for name, field in lazy.items() if field.is_lazy and not field.takes_lists)
        return cls(entries, tuple(pictures if each.fields is None else each.fields for _, each in entries), spec.seed)

    def mix(self, batch: Batch) -> Batch:
        """Return the batch with pairs of samples mixed. Each sample is changed by at most one transform, and is mixed
        with the unchanged values of its partner. If the number of samples is odd, the last one has no partner and stays
        unchanged."""
        import torch

        if batch.num_rows < 2:
            return batch
        size = len(next(iter(batch.tensors.values())))
        rows = np.arange(size)
        partner = np.where((rows ^ 1) < batch.num_rows, rows ^ 1, rows)
        partner[batch.num_rows :] = rows[batch.num_rows :]
        numbers = np.zeros(size, np.int64)
        numbers[: batch.num_rows] = batch.sample_ids
        chosen = uniform(numbers, key_of("pairs", self.seed, batch.epoch))
        tensors, begin, others = dict(batch.tensors), 0.0, dict[str, "torch.Tensor"]()
        index = torch.from_numpy(partner)
        for (number, entry), fields in zip(self.entries, self.fields, strict=True):
            end = begin + entry.p
            acts = (partner != rows) & (chosen >= begin) & ((chosen < end) | (end > 1 - 1e-9))
            begin = end
            for name in (*fields, *entry.labels):
                if name not in others:
                    values = batch.tensors[name]
                    others[name] = values.index_select(0, index.to(values.device))
            key = key_of("transform", self.seed, batch.epoch, number)
            tensors |= entry.mix(tensors, others, fields, numbers, acts, key)
        return replace(batch, tensors=tensors)


def check_transforms(
    transforms: Sequence[Transform], specs: Mapping[str, TensorSpec], pictures: Sequence[str]
) -> Iterator[tuple[tuple[int | str, ...], ShapeError]]:
    """Yield (keys below `data.transforms`, error) for each mistake in a transform that mixes pairs of samples: it
    cannot mix the fields, other transforms follow it, or the shares of all such transforms are more than 1 together.

    `specs`: shapes of the fields, where known. `pictures`: names of the fields of type `image`.
    """
    entries = list(of_pairs(transforms))
    whole = sum(entry.p for _, entry in entries)
    if whole > 1 + 1e-9:
        message = f"the shares `p` of entries that mix add up to {whole:g}, but at most one acts on a sample"
        yield (entries[-1][0], "p"), ShapeError(message, help=f"give each {1 / len(entries):.2g}")
    for number, entry in entries:
        later = next((each for each in transforms[number + 1 :] if not isinstance(each, PairTransform)), None)
        if later is not None:
            message = f"`{entry.type}` mixes finished samples, but `{later.type}` follows it"
            yield (number, "type"), ShapeError(message, help="put it at the end of the list")
        yield from _of_names(number, entry, specs, pictures)


def _of_names(
    number: int, entry: PairTransform, specs: Mapping[str, TensorSpec], pictures: Sequence[str]
) -> Iterator[tuple[tuple[int | str, ...], ShapeError]]:
    for at, name in enumerate(entry.fields or ()):
        if name in entry.labels:
            yield (number, "fields", at), ShapeError(f"`{name}` is also in `labels`", help="name it once")
        elif entry.of_pictures and name in specs and name not in pictures:
            message = f"`{name}` is not a field of images, but `{entry.type}` pastes parts of images"
            yield (number, "fields", at), ShapeError(message, help="use fields of `type: image`, or `mixup`")
    for key in ("fields", "labels"):
        for at, name in enumerate(getattr(entry, key) or ()):
            is_pasted = key == "fields" and entry.of_pictures and name in pictures
            if name in specs and not specs[name].is_floating and not is_pasted:
                message = f"`{name}` is {specs[name].dtype}, whose values cannot be averaged"
                hint = "for classes: `type: category, one_hot: true`; for numbers: `dtype: float32`"
                yield (number, key, at), ShapeError(message, help=hint)
    sizes = {name: specs[name].shape[-2:] for name in entry.fields or pictures if name in specs and name in pictures}
    if entry.of_pictures and len(set(sizes.values())) > 1:
        said = " and ".join(f"`{name}` {size[0]} x {size[1]}" for name, size in sizes.items())
        yield (
            (number, "type"),
            ShapeError(f"images that share a rectangle must have the same size: {said}", help="list one field"),
        )
