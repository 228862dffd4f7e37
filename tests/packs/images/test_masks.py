"""Masks of segmentation: the classes of a file, moved with the pictures by one draw, and never mixed."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train.components.counter_rng import Drawn
from declarative_train.components.data import BadValueError, Column
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.packs.images.mask import MaskField
from declarative_train.run.event import EvaluationDone
from tests.engine.runs import go

Image = pytest.importorskip("PIL.Image")
Describe = Callable[..., tuple[DataSpec | None, list[Diagnostic]]]
BYTES = Column("mask", "bytes")
MOVING: dict[str, dict[str, Any]] = {
    "center_crop": {"size": 9},
    "rand_augment": {},
    "random_crop": {"size": 9, "padding": 3},
    "random_flip": {},
    "random_resized_crop": {"size": 9, "method": "nearest"},
    "random_rotation": {"degrees": 60.0, "method": "nearest"},
    "resize": {"size": 9, "method": "nearest"},
    "trivial_augment": {},
}


def png(picture: Any, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind)
    return stream.getvalue()


def classes(field: MaskField, content: bytes) -> np.ndarray:
    return field.numbers(field.picture(content, BYTES))


def test_pixels_become_classes() -> None:
    pixels = np.array([[0, 1], [2, 1]], np.uint8)
    plain = MaskField(column="mask", num_classes=3)
    palette = Image.fromarray(pixels).convert("P")
    palette.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
    palette.putdata(pixels.ravel().tolist())
    grey = Image.fromarray(np.repeat(pixels[:, :, None], 3, 2))
    for picture in (Image.fromarray(pixels), palette, grey, Image.fromarray(pixels.astype(np.uint16))):
        found = classes(plain, png(picture))
        assert found.dtype == np.int64
        assert np.array_equal(found, pixels), picture.mode
    assert plain.row_spec([BYTES], {}).num_values == 3
    black_and_white = MaskField(column="mask", values=(255, 0))
    assert classes(black_and_white, png(Image.fromarray(np.array([[0, 255]], np.uint8)))).tolist() == [[1, 0]]
    one_bit = Image.fromarray(pixels > 0)
    assert classes(MaskField(column="mask", num_classes=2), png(one_bit)).tolist() == [[0, 1], [1, 1]]
    edges = MaskField(column="mask", num_classes=3, ignore=255)
    assert classes(edges, png(Image.fromarray(np.array([[255, 2]], np.uint8)))).tolist() == [[3, 2]]
    assert edges.row_spec([BYTES], {}).num_values == 4
    array = plain.convert([pixels[None].astype(np.int64)], [Column("mask", "int64", (2, 2))], {})
    assert np.array_equal(array[0], pixels)


def test_what_is_no_mask_says_so() -> None:
    field = MaskField(column="mask", num_classes=3)
    colours = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    with pytest.raises(BadValueError, match="it is coloured"):
        field.picture(png(colours), BYTES)
    with pytest.raises(BadValueError, match="a JPEG does not keep"):
        field.picture(png(Image.new("L", (4, 4)), "JPEG"), BYTES)
    with pytest.raises(BadValueError, match="a pixel of 7, which is none of 3 classes"):
        field.picture(png(Image.new("L", (2, 2), 7)), BYTES)
    with pytest.raises(BadValueError, match="a pixel of 7, which is not in `values`"):
        MaskField(column="mask", values=(0, 255)).picture(png(Image.new("L", (2, 2), 7)), BYTES)
    with pytest.raises(BadValueError, match="pixel of 300"):
        field.picture(png(Image.fromarray(np.full((2, 2), 300, np.uint16))), BYTES)
    for keys, words in (
        ({}, "one of two keys"),
        ({"num_classes": 3, "values": (1, 2, 3)}, "one of two keys"),
        ({"values": (1, 1)}, "twice"),
        ({"num_classes": 3, "ignore": 2}, "one of the 3 classes"),
    ):
        with pytest.raises(ValueError, match=words):
            MaskField.model_validate({"column": "mask", **keys})


@pytest.mark.parametrize("kind", MOVING)
def test_a_mask_moves_with_its_picture(kind: str) -> None:
    """A picture of the classes themselves, by the same filter, where no colour is changed."""
    transform = TRANSFORMS[kind].model_validate({"type": kind, **MOVING[kind]})
    pixels = np.random.default_rng(0).integers(1, 200, (17, 14), np.uint8)
    picture = Image.fromarray(pixels)
    moved = 0
    for sample in range(60):
        (image,), (mask,) = (
            transform.apply([picture], Drawn(3, sample)),
            transform.apply_to_masks([picture], Drawn(3, sample)),
        )
        assert image.size == mask.size
        assert set(np.unique(mask)) <= {0, *np.unique(pixels)}
        if kind in ("rand_augment", "trivial_augment"):
            if not np.array_equal(mask, pixels) and kind == "trivial_augment":
                assert np.array_equal(image, mask)
            moved += not np.array_equal(mask, pixels)
        else:
            assert np.array_equal(image, mask), sample
            moved += 1
    assert moved > 10
    assert {name for name, each in TRANSFORMS.items() if each.moves} == set(MOVING)


@pytest.mark.long
def test_masks_move_as_torchvisions() -> None:
    """Parameters that are drawn here, given to its functions; `nearest` of a size is its `nearest-exact`."""
    v2 = pytest.importorskip("torchvision.transforms.v2.functional")
    from torchvision import tv_tensors
    from torchvision.transforms import InterpolationMode

    pixels = np.random.default_rng(0).integers(0, 9, (17, 14), np.uint8)
    mask = tv_tensors.Mask(torch.from_numpy(pixels.copy()))
    exact = InterpolationMode.NEAREST_EXACT
    crop = TRANSFORMS["random_resized_crop"].model_validate({"type": "random_resized_crop", "size": (9, 8)})
    compared = 0
    for sample in range(20):
        top, left, height, width = crop._part(17, 14, Drawn(1, sample))  # type: ignore[attr-defined]
        (found,) = crop.apply_to_masks([Image.fromarray(pixels)], Drawn(1, sample))
        wanted = v2.resize(v2.crop(mask, top, left, height, width), [9, 8], interpolation=exact).numpy()
        down, across = (
            np.abs(places - np.rint(places)) > 1e-4  # else it falls between two pixels, and either will do
            for places in ((np.arange(9) + 0.5) * height / 9, (np.arange(8) + 0.5) * width / 8)
        )
        assert np.array_equal(np.asarray(found)[np.ix_(down, across)], wanted[np.ix_(down, across)])
        compared += int(down.sum() * across.sum())
    assert compared > 500
    flip = TRANSFORMS["random_flip"].model_validate({"type": "random_flip", "p": 1.0})
    (found,) = flip.apply_to_masks([Image.fromarray(pixels)], Drawn(1, 1))
    assert np.array_equal(np.asarray(found), v2.horizontal_flip(mask).numpy())
    center = TRANSFORMS["center_crop"].model_validate({"type": "center_crop", "size": 9})
    (found,) = center.apply_to_masks([Image.fromarray(pixels)], Drawn(1, 1))
    assert np.array_equal(np.asarray(found), v2.center_crop(mask, [9, 9]).numpy())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Pictures of a disc on noise, and where it is: 255; 7 on its edge."""
    draws = np.random.default_rng(0)
    down, across = np.mgrid[:16, :16]
    pictures, masks = [], []
    for _ in range(96):
        place, radius = draws.uniform(4, 12, 2), draws.uniform(2, 5)
        distance = np.hypot(down - place[0], across - place[1]) - radius
        pictures.append(draws.integers(0, 110, (16, 16)) + 90 * (distance < 0))
        masks.append(np.where(np.abs(distance) < 0.4, 7, 255 * (distance < 0)))
    np.savez(tmp_path / "made.npz", picture=np.array(pictures, np.uint8), mask=np.array(masks, np.uint8))
    return tmp_path / "made.npz"


FIELDS: dict[str, Any] = {
    "image": {"type": "image", "column": "picture", "mode": "L"},
    "mask": {"type": "mask", "column": "mask", "values": [0, 255], "ignore": 7},
}
CHANGES: list[Any] = [
    {"type": "random_flip"},
    {"type": "random_crop", "size": 16, "padding": 2},
    {"type": "color_jitter", "strength": 0.2},
    {"type": "normalize", "mean": [0.3], "std": [0.25]},
]
CUT = {"type": "cutmix", "labels": [], "p": 0.5}


def test_one_draw_serves_pictures_and_masks_and_cutmix_both(look: Describe, table: Path) -> None:
    """The pictures are the masks: what happens to both must stay the same."""
    fields = FIELDS | {"image": {"type": "image", "column": "mask", "mode": "L"}}
    transforms = [*CHANGES[:2], {"type": "random_flip", "direction": "vertical"}, CUT]
    spec, found = look(source={"type": "npy", "path": str(table)}, fields=fields, transforms=transforms)
    assert not found
    assert spec is not None
    assert {field.name: str(field.tensor) for field in spec.fields} == {
        "image": "(B, 1, 16, 16)",
        "mask": "(B, 16, 16)",
    }
    (batch,) = TrainingBatches(spec, BatchSpec(48, 1, 1, 48, 1, 2), 0, open_sets(spec)).step(1)
    image, mask = (255 * batch.tensors["image"][:, 0]).round().long(), batch.tensors["mask"]
    assert mask.dtype == torch.int64
    outside = (mask == 2) & (image == 0)
    wanted = torch.where(image == 255, 1, torch.where((image == 7) | outside, 2, 0))
    assert torch.equal(mask, wanted)
    assert outside.any()


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ({"type": "color_jitter", "strength": 0.2, "fields": ["mask"]}, "`color_jitter` does not change a mask"),
        ({"type": "mixup", "labels": []}, "classes of a mask cannot be averaged"),
        ({"type": "mixup", "labels": ["mask"], "fields": ["image"]}, "`mask` is int64"),
        ({"type": "center_crop", "size": 8, "fields": ["image"], "only": "training"}, "8 x 8 in training"),
    ],
)
def test_what_would_part_them_is_said(look: Describe, table: Path, transform: dict[str, Any], words: str) -> None:
    spec, found = look(source={"type": "npy", "path": str(table)}, fields=FIELDS, transforms=[transform])
    assert spec is None
    assert any(words in each.message for each in found), found


def recipe() -> dict[str, Any]:
    conv = {"type": "conv2d", "kernel_size": 3, "padding": 1}
    return {
        "name": "made",
        "data": {
            "source": {"type": "npy", "path": "made.npz"},
            "fields": FIELDS,
            "transforms": [*CHANGES, CUT],
            "split": {"validation": 0.25},
        },
        "model": {
            "graph": {
                "one": {**conv, "out_channels": 8, "input": "image"},
                "act": {"type": "relu"},
                "two": {**conv, "out_channels": 8},
                "act2": {"type": "relu"},
                "scores": {**conv, "out_channels": 2},
            }
        },
        "objective": {
            "loss": {
                "type": "cross_entropy",
                "input": "scores",
                "target": "mask",
                "class_dim": 1,
                "ignore_index": 2,
            },
            "metrics": ["accuracy", "f1"],
        },
        "training": {"epochs": 12, "global_batch_size": 12, "optimizer": {"type": "adam", "lr": 1e-2}},
        "evaluation": {"every": "12 epochs"},
        "layout": {"device": "cpu"},
    }


@pytest.mark.timeout(60)
def test_a_segmentation_is_linted_planned_and_learnt(table: Path) -> None:
    done = go(table.parent, recipe())
    assert done.code == 0
    values = done.of(EvaluationDone)[-1].values
    assert values["validation/f1"] > 0.85, values  # nothing but background: 0.46


def test_a_loss_that_counts_ignored_pixels_is_refused(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import yaml

    from declarative_train.app.main import main

    wrong = recipe()
    del wrong["objective"]["loss"]["ignore_index"]
    (table.parent / "made.yaml").write_text(yaml.safe_dump(wrong, sort_keys=False))
    assert main(["lint", str(table.parent / "made.yaml")]) == 1
    assert "0 to 2" in capsys.readouterr().out
