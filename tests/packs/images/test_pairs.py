"""Samples mixed in pairs: torchvision's formulas, the same for every layout, and never outside of training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train.components.counter_rng import key_of, uniform
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.components.transforms.pairs import PairTransform, beta
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.batch import Batch
from declarative_train.data.mixup import PairMixer
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.packs.images.transforms.pairs import MixUp, add_weighted

pytest.importorskip("PIL")
ROWS = 45
Describe = Callable[..., tuple[DataSpec | None, list[Diagnostic]]]
FIELDS = {
    "image": {"type": "image", "column": "image"},
    "label": {"type": "category", "column": "label", "one_hot": True},
    "price": {"column": "price"},
}
MIX = {"type": "mixup", "labels": ["label", "price"], "alpha": 0.6, "p": 0.4}
CUT = {"type": "cutmix", "labels": ["label", "price"], "p": 0.4}
FLIP = {"type": "random_flip"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    draws = np.random.default_rng(0)
    pictures = draws.integers(0, 256, (ROWS, 8, 6, 3), np.uint8)
    prices = draws.random(ROWS).astype(np.float32)
    np.savez(tmp_path / "made.npz", image=pictures, label=np.arange(ROWS) % 5, price=prices)
    return tmp_path / "made.npz"


def described(look: Describe, table: Path, transforms: list[Any], **keys: Any) -> DataSpec:
    source = {"type": "npy", "path": str(table)}
    spec, found = look(source=source, fields=FIELDS, split={"validation": 0.2}, transforms=transforms, **keys)
    assert not found
    assert spec is not None
    return spec


def steps(
    spec: DataSpec, ranks: int, accumulation: int, first: int = 1, count: int = 10
) -> dict[tuple[int, int], dict[str, np.ndarray]]:
    """Every sample's tensors, by step and number: 36 samples an epoch, 8 a step."""
    found = {}
    sets = open_sets(spec)
    size = 8 // ranks // accumulation
    for rank in range(ranks):
        batches = TrainingBatches(spec, BatchSpec(8, ranks, accumulation, size, 1, 5), rank, sets)
        for step, chunks in enumerate(batches.iterate(first, count), first):
            for batch in chunks:
                for row, sample in enumerate(batch.sample_ids.tolist()):
                    found[step, sample] = {name: each[row].numpy().copy() for name, each in batch.tensors.items()}
    return found


def first_batch(spec: DataSpec) -> Batch:
    """Return 34 of the 36 samples of an epoch."""
    return TrainingBatches(spec, BatchSpec(34, 1, 1, 34, 1, 2), 0, open_sets(spec)).step(1)[0]


def pairs_of(spec: DataSpec) -> PairMixer:
    found = PairMixer.of(spec)
    assert found is not None
    return found


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.timeout(60)
def test_every_layout_mixes_the_same_to_the_bit(look: Describe, table: Path, workers: int) -> None:
    whole = steps(described(look, table, [FLIP, MIX, CUT]), 1, 1)
    plain = steps(described(look, table, [FLIP]), 1, 1)
    assert whole.keys() == plain.keys()
    changed = [key for key in whole if not same(whole[key], plain[key])]
    assert 0.6 * len(whole) < len(changed) < 0.95 * len(whole)  # 0.8 of them, but for rectangles without a pixel
    assert all(whole[key]["label"].sum() == pytest.approx(1, abs=1e-6) for key in whole)
    spec = described(look, table, [FLIP, MIX, CUT], workers=workers)
    for ranks, accumulation in ((2, 1), (1, 2), (2, 2)):
        found = steps(spec, ranks, accumulation)
        assert found.keys() == whole.keys()
        assert all(same(found[key], whole[key]) for key in whole)
    resumed = steps(spec, 2, 1, 4, 5)
    assert all(same(resumed[key], whole[key]) for key in resumed)


def test_partners_are_neighbours_of_the_order(look: Describe, table: Path) -> None:
    spec = described(look, table, [MIX | {"p": 1.0, "fields": ["image"]}])
    plain = described(look, table, [])
    for step in (1, 5):  # the last one has 4 samples
        mixed, before = (
            TrainingBatches(each, BatchSpec(8, 1, 1, 8, 1, 5), 0, open_sets(each)).step(step)[0]
            for each in (spec, plain)
        )
        assert np.array_equal(mixed.sample_ids, before.sample_ids)
        for row in range(mixed.num_rows):
            own, other = before.tensors["label"][row], before.tensors["label"][row ^ 1]
            share = float(mixed.tensors["label"][row] @ own)
            if bool((own != other).any()):
                wanted = add_weighted(
                    before.tensors["image"][row : row + 1], before.tensors["image"][[row ^ 1]], np.array([share])
                )
                torch.testing.assert_close(mixed.tensors["image"][row : row + 1], wanted, rtol=1e-5, atol=1e-6)


def test_the_last_of_an_odd_number_and_padding_stay(look: Describe, table: Path) -> None:
    spec = described(look, table, [MIX | {"p": 1.0}, CUT | {"p": 1e-6}][:1])
    plain = described(look, table, [])
    batch = BatchSpec(10, 1, 1, 10, 1, 4, pad_to_full=True)  # 36 samples: 10, 10, 10, 6
    for sized in (batch, BatchSpec(34, 1, 1, 34, 1, 2)):
        sets = [open_sets(each) for each in (spec, plain)]
        mixed, before = (
            TrainingBatches(each, sized, 0, own).step(sized.steps_per_epoch)[0]
            for each, own in zip((spec, plain), sets, strict=True)
        )
        assert (mixed.num_rows, len(mixed.tensors["image"])) == ((6, 10) if sized is batch else (2, 2))
        for row in range(mixed.num_rows, len(mixed.tensors["image"])):
            assert torch.equal(mixed.tensors["image"][row], before.tensors["image"][row])
    one = first_batch(plain)
    for size in (3, 4):  # the fourth row is padding
        three = Batch({name: each[:size] for name, each in one.tensors.items()}, 3, None, one.sample_ids[:3], 0)
        mixed = pairs_of(spec).mix(three)
        assert not torch.equal(mixed.tensors["image"][:2], three.tensors["image"][:2])
        for name, values in three.tensors.items():
            assert torch.equal(mixed.tensors[name][2:], values[2:])


def test_every_epoch_draws_which_samples_are_mixed_and_by_which_shares(look: Describe, table: Path) -> None:
    batch = first_batch(described(look, table, []))
    pairs = pairs_of(described(look, table, [MIX | {"p": 0.5}]))
    first, second = (pairs.mix(replace(batch, epoch=epoch)).tensors["image"] for epoch in (0, 1))
    changed, changed_later = ((each != batch.tensors["image"]).flatten(1).any(1) for each in (first, second))
    assert not torch.equal(changed, changed_later)
    in_both = changed & changed_later
    assert in_both.any()
    assert (first != second).flatten(1).any(1)[in_both].all()


def test_evaluations_are_not_mixed(look: Describe, table: Path) -> None:
    values = [
        [batch.tensors for batch in EvaluationBatches(spec, "validation", open_sets(spec), batch_size=4).iterate()]
        for spec in (described(look, table, [MIX, CUT]), described(look, table, []))
    ]
    for one, other in zip(*values, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert set(one["label"].unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", ["MixUp", "CutMix"])
def test_a_pair_is_mixed_as_by_torchvision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given the draws: there a batch has one share and one place, here each sample has its own."""
    theirs = getattr(pytest.importorskip("torchvision.transforms.v2"), name)(num_classes=5)
    entry = TRANSFORMS.read({"type": name.lower(), "labels": ["label"], "alpha": 0.7})
    assert isinstance(entry, PairTransform)
    pair, labels, height, width = torch.rand(2, 3, 30, 22), torch.tensor([1, 3]), 30, 22
    tensors = {"image": pair, "label": torch.nn.functional.one_hot(labels, 5).float()}
    partners = {field: values.flip(0) for field, values in tensors.items()}
    for first in range(0, 40, 2):
        numbers = np.array([first, first + 1])
        found = entry.mix(tensors, partners, ("image",), numbers, np.array([True, True]), 17)
        for row in range(2):
            share = torch.tensor(beta(numbers, 17, 0.7)[row])
            places = {
                size: int(uniform(numbers, key_of(17, side))[row] * size)
                for side, size in (("height", height), ("width", width))
            }
            with monkeypatch.context() as patch:
                patch.setattr(torch.distributions.Beta, "sample", lambda *_, share=share: share)
                patch.setattr(torch, "randint", lambda high, size, places=places: torch.tensor([places[high]]))
                image, label = theirs(pair, labels)
            torch.testing.assert_close(found["image"][row], image[row])
            torch.testing.assert_close(found["label"][row], label[row])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 1.5, 8.0])
def test_shares_follow_their_distribution(alpha: float) -> None:
    found = beta(np.arange(20_000), 11, alpha)
    wanted = np.random.default_rng(0).beta(alpha, alpha, 200_000)
    shares = np.linspace(0.01, 0.99, 99)
    here, there = ((each[:, None] <= shares).mean(0) for each in (found, wanted))
    assert np.abs(here - there).max() < 0.012  # one in a million of a right one would miss it
    picked = np.array([17, 3, 19_000])
    assert np.array_equal(beta(picked, 11, alpha), found[picked])  # whoever else is in the batch


@pytest.mark.parametrize(
    ("transforms", "words"),
    [
        ([MIX | {"labels": ["labels"]}], "there is no field `labels`"),
        ([MIX | {"labels": ["number"]}], "`number` is int64, whose values cannot be averaged"),
        ([MIX, FLIP], "`random_flip` follows it"),
        ([MIX | {"p": 0.7}, CUT], "add up to 1.1"),
        ([CUT | {"fields": ["price"], "labels": []}], "`price` is not a field of images"),
        ([MIX | {"fields": ["image", "label"]}], "`label` is also in `labels`"),
        ([CUT | {"only": "evaluation"}], "`cutmix` is random"),
    ],
)
def test_what_cannot_be_mixed_is_said(look: Describe, table: Path, transforms: list[Any], words: str) -> None:
    fields = FIELDS | {"number": {"type": "category", "column": "label"}}
    spec, found = look(source={"type": "npy", "path": str(table)}, fields=fields, transforms=transforms)
    assert spec is None
    assert any(words in each.message and each.code == "D042" for each in found), found


def test_an_order_that_is_always_the_same_mixes_nothing_new(look: Describe, table: Path) -> None:
    source = {"type": "npy", "path": str(table)}
    spec, found = look(source=source, fields=FIELDS, transforms=[MIX], shuffle=False)
    assert spec is None
    assert "always the same" in found[0].message


def test_numbers_without_pictures_are_mixed_too(look: Describe, table: Path) -> None:
    fields = {"x": {"column": "price", "scale": 2.0}, "y": {"column": "price"}}
    transforms = [{"type": "mixup", "fields": ["x"], "labels": ["y"], "alpha": 1.0}]
    spec, found = look(source={"type": "npy", "path": str(table)}, fields=fields, transforms=transforms)
    assert not found
    assert spec is not None
    sets = open_sets(spec)
    assert sets["training"].is_held
    batches = TrainingBatches(spec, BatchSpec(8, 1, 1, 8, 1, 6), 0, sets)
    (batch,) = next(iter(batches.iterate(1, 1)))
    torch.testing.assert_close(batch.tensors["x"], 2 * batch.tensors["y"])
    assert not np.isin(batch.tensors["y"].numpy(), sets["training"].gather(np.arange(ROWS))["y"].numpy()).any()
    assert isinstance(TRANSFORMS.read(spec.transforms[0]), MixUp)
