"""Boxes of pictures: read in three formats, moved with the picture by one draw, cut, dropped and padded."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train.components.counter_rng import Drawn
from declarative_train.components.data import LISTS, BadValueError, Column
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.packs.images.boxes import Boxes, BoxesField
from declarative_train.packs.images.modules.boxes import overlap
from tests.engine.on_ranks import forked

Image = pytest.importorskip("PIL.Image")
Describe = Callable[..., tuple[DataSpec | None, list[Diagnostic]]]
COLUMN = Column("boxes", LISTS)
COLUMNS = (COLUMN, Column("kinds", LISTS))
MOVING: dict[str, dict[str, Any]] = {
    "center_crop": {"size": 30},
    "rand_augment": {"magnitude": 12},
    "random_crop": {"size": 30, "padding": 6},
    "random_flip": {},
    "random_resized_crop": {"size": (24, 31), "method": "nearest"},
    "random_rotation": {"degrees": 60.0, "method": "nearest"},
    "resize": {"size": 30, "method": "nearest"},
    "trivial_augment": {},
}


def field(**keys: Any) -> BoxesField:
    return BoxesField.model_validate({"column": "boxes", "length": 3, **keys})


def placed(boxes: list[list[float]], size: tuple[int, int] = (40, 50), **keys: Any) -> tuple[BoxesField, Boxes]:
    made = field(**keys)
    return made, made.clip_to_picture(made.read(json.dumps(boxes), None, [COLUMN]), size, COLUMN)


@pytest.mark.parametrize(
    ("keys", "numbers"),
    [
        ({}, [10, 4, 30, 20]),
        ({"format": "xywh"}, [10, 4, 20, 16]),
        ({"format": "cxcywh"}, [20, 12, 20, 16]),
        ({"relative": True}, [0.2, 0.1, 0.6, 0.5]),
        ({"relative": True, "format": "cxcywh"}, [0.4, 0.3, 0.4, 0.4]),
    ],
)
def test_all_formats_say_the_same_box(keys: dict[str, Any], numbers: list[float]) -> None:
    for out, wanted in (("xyxy", [10, 4, 30, 20]), ("xywh", [10, 4, 20, 16]), ("cxcywh", [20, 12, 20, 16])):
        made, boxes = placed([numbers], out_format=out, out_relative=False, **keys)
        found = made.to_array(boxes)
        assert found.dtype == np.float32
        assert np.allclose(found, [wanted, [0] * 4, [0] * 4])
        shares = made.model_copy(update={"out_relative": True, "pad": -1.0})
        assert np.allclose(shares.to_array(boxes), [np.array(wanted) / [50, 40, 50, 40], [-1] * 4, [-1] * 4])
        assert np.allclose(shares.corners(shares.to_array(boxes), (40, 50)), [[10, 4, 30, 20]], atol=1e-4)
    assert made.output_of("mask").to_array(boxes).tolist() == [True, False, False]
    assert made.output_of("labels").to_array(boxes).tolist() == [0, 1, 1]


def test_classes_stand_beside_and_are_dropped_with_their_boxes() -> None:
    made = field(labels="kinds", values=("cat", "dog"), min_visibility=0.4)
    read = made.read(json.dumps([[0, 0, 10, 10], [20, 20, 30, 40]]), '["dog", "cat"]', COLUMNS)
    boxes = made.clip_to_picture(read, (40, 50), COLUMN)
    crop = TRANSFORMS["center_crop"].model_validate({"type": "center_crop", "size": (40, 42)})
    left = boxes.move(crop.motions((40, 50), Drawn(0, 0)))
    assert left.visible.tolist() == [0.6, 1.0]
    assert made.output_of("labels").to_array(left).tolist() == [1, 0, 2]
    strict = made.model_copy(update={"min_visibility": 0.7})
    assert strict.output_of("labels").to_array(left).tolist() == [0, 2, 2]
    assert strict.output_of("mask").to_array(left).tolist() == [True, False, False]
    assert np.allclose(strict.to_array(left)[0], np.array([16, 20, 26, 40]) / [42, 40, 42, 40])
    assert made.output_of("labels").row_spec(COLUMNS, {}).num_values == 3
    numbers = field(labels="kinds", num_classes=9)
    assert numbers.read("[[0, 0, 1, 2]]", np.int64(7), (COLUMN, Column("kinds", "int64"))).classes.tolist() == [7]
    word = field(labels="kinds", values=("7",))
    assert word.read("[0, 0, 1, 2]", "7", (COLUMN, Column("kinds", "object"))).classes.tolist() == [0]
    assert not len(numbers.read("[]", "[]", COLUMNS).corners)


@pytest.mark.parametrize(
    ("value", "keys", "words"),
    [
        (None, {}, "has no list of boxes"),
        ("[[1, 2, 3]]", {}, "not four numbers"),
        ("[[1, 2, 3, 4], [1, 2]]", {}, "not four numbers"),
        ("[[1, 2, 3, null]]", {}, "missing or infinite"),
        ("[[9, 2, 3, 4]]", {}, r"\(9, 2, 3, 4\), which as left, top, right, bottom has no area"),
        ("[[9, 2, -3, 4]]", {"format": "xywh"}, "as left, top, width, height has no area"),
        ("[[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]", {}, "has 4 boxes, and `length` is 3"),
        ("[[30, 30, 45, 39]]", {"format": "xywh"}, "reaches out of its picture, 40 x 50"),
        ("[[3, 3, 40, 39]]", {"relative": True}, "reaches out"),
        ("[[0.1, 0.1, 0.5, 0.6]]", {}, "beyond the first pixel"),
    ],
)
def test_what_is_no_box_says_so(value: str | None, keys: dict[str, Any], words: str) -> None:
    made = field(**keys)
    with pytest.raises(BadValueError, match=words):
        made.clip_to_picture(made.read(value, None, [COLUMN]), (40, 50), COLUMN)


def test_what_is_no_class_says_so_and_keys_that_do_not_agree() -> None:
    made = field(labels="kinds", num_classes=2)
    for labels, words in (
        ("[0]", "1 class for 2 boxes"),
        ("[0, 2]", "has `2`, which is none of 2"),
        (None, "has no classes"),
    ):
        with pytest.raises(BadValueError, match=words):
            made.read("[[1, 2, 3, 4], [1, 2, 3, 4]]", labels, COLUMNS)
    for keys, words in (
        ({"labels": "kinds"}, "one of two keys"),
        ({"labels": "kinds", "num_classes": 2, "values": ("a",)}, "one of two keys"),
        ({"num_classes": 2}, "no column has them"),
        ({"labels": "kinds", "values": ("a", "a")}, "twice"),
    ):
        with pytest.raises(ValueError, match=words):
            field(**keys)


@pytest.mark.parametrize("kind", MOVING)
def test_a_box_stays_around_what_it_is_around(kind: str) -> None:
    """A bright rectangle is moved by Pillow, its box by arithmetic."""
    transform = TRANSFORMS[kind].model_validate({"type": kind, **MOVING[kind]})
    _, boxes = placed([[12, 9, 33, 31]], out_relative=False)
    pixels = np.zeros((40, 50), np.uint8)
    pixels[9:31, 12:33] = 255
    seen = 0
    for sample in range(60):
        (image,) = transform.apply_to_masks([Image.fromarray(pixels)], Drawn(3, sample))
        moved = boxes.move(transform.motions((40, 50), Drawn(3, sample)))
        assert moved.size == (image.height, image.width)
        down, across = np.nonzero(np.asarray(image))
        if not len(down):
            assert moved.visible[0] < 0.1
            continue
        around = [across.min(), down.min(), across.max() + 1, down.max() + 1]
        several = kind == "rand_augment"  # the box around a turned box is larger than what is in it
        gap = np.abs(np.asarray(around) - moved.corners[0])
        if several:
            assert (moved.corners[0][:2] <= np.asarray(around[:2]) + 1.5).all()
            assert (moved.corners[0][2:] >= np.asarray(around[2:]) - 1.5).all()
        else:
            assert gap.max() <= 1.5, (sample, around, moved.corners)
        seen += 1
    assert seen > 30
    assert {name for name, each in TRANSFORMS.items() if each.moves} == set(MOVING)


def test_boxes_move_as_torchvisions() -> None:
    """Its functions on `tv_tensors.BoundingBoxes`, given the parameters that are drawn here."""
    v2 = pytest.importorskip("torchvision.transforms.v2.functional")
    from torchvision import tv_tensors

    draws = np.random.default_rng(0)
    first = draws.uniform(0, [38, 28], (16, 2))
    corners = np.concatenate([first, first + draws.uniform(2, 12, (16, 2))], 1)
    theirs = tv_tensors.BoundingBoxes(torch.from_numpy(corners), format="XYXY", canvas_size=(40, 50))
    made = BoxesField.model_validate({"column": "boxes", "length": 16})
    ours = made.clip_to_picture(made.read(json.dumps(corners.tolist()), None, [COLUMN]), (40, 50), COLUMN)

    def same(kind: str, number: int, keys: dict[str, Any], wanted: Any) -> None:
        transform = TRANSFORMS[kind].model_validate({"type": kind, **keys})
        found = ours.move(transform.motions((40, 50), Drawn(1, number)))
        assert found.size == tuple(wanted.canvas_size)
        is_left = found.visible > 0
        assert np.allclose(found.corners[is_left], wanted.numpy()[is_left], atol=1e-4), (kind, number)
        sides = wanted.numpy()[:, 2:] - wanted.numpy()[:, :2]
        assert np.array_equal(is_left, (sides > 1e-9).all(1))

    same("resize", 0, {"size": 25}, v2.resize(theirs, [25]))
    same("resize", 0, {"size": (33, 21)}, v2.resize(theirs, [33, 21]))
    same("center_crop", 0, {"size": 24}, v2.center_crop(theirs, [24, 24]))
    same("random_flip", 0, {"p": 1.0}, v2.horizontal_flip(theirs))
    same("random_flip", 0, {"p": 1.0, "direction": "vertical"}, v2.vertical_flip(theirs))
    resized = TRANSFORMS["random_resized_crop"].model_validate({"type": "random_resized_crop", "size": (24, 31)})
    cropped = TRANSFORMS["random_crop"].model_validate({"type": "random_crop", "size": 30, "padding": 4})
    turned = TRANSFORMS["random_rotation"].model_validate({"type": "random_rotation", "degrees": 90})
    for number in range(20):
        part: Any = resized._part(40, 50, Drawn(1, number))  # type: ignore[attr-defined]
        same("random_resized_crop", number, {"size": (24, 31)}, v2.resized_crop(theirs, *part, [24, 31]))
        part = cropped._part(40, 50, Drawn(1, number))  # type: ignore[attr-defined]
        same("random_crop", number, {"size": 30, "padding": 4}, v2.crop(theirs, *part))
        angle: Any = turned._angle(Drawn(1, number))  # type: ignore[attr-defined]
        same("random_rotation", number, {"degrees": 90}, v2.rotate(theirs, angle))


def test_giou_of_any_numbers_is_between_0_and_2() -> None:
    """The model of the tutorial predicted inverted boxes: their loss was -18, and fell."""
    from declarative_train.components.losses import LOSSES

    draws = torch.Generator().manual_seed(0)
    one, other = (4 * torch.randn(2000, 4, generator=draws, dtype=torch.float64) for _ in range(2))
    one[0] = torch.tensor([0.99996, 0.99996, 0.00004, 0.00004])
    other[0] = torch.tensor([0.2, 0.2, 0.6, 0.6])
    for form in ("xyxy", "xywh", "cxcywh"):
        loss = LOSSES["giou"].model_validate({"type": "giou", "format": form})
        made = loss.build(TensorSpec((4,)), TensorSpec((4,)), None)
        each = torch.stack([made.sum(a[None], b[None], None, None) for a, b in zip(one, other, strict=True)])
        assert each.min() >= 0, form
        assert each.max() <= 2, form
    both, union, around = overlap(one, other, "xyxy")
    assert ((both <= union) & (union <= around + 1e-9)).all()


@pytest.mark.parametrize("form", ["xyxy", "xywh", "cxcywh"])
def test_giou_is_torchvisions(form: str) -> None:
    from torchvision import ops

    from declarative_train.components.losses import LOSSES

    draws = torch.Generator().manual_seed(0)
    first, second, wide, tall = (torch.rand(64, 3, 2, generator=draws, dtype=torch.float64) for _ in range(4))
    one, other = torch.cat([first, first + wide], -1), torch.cat([second, second + tall], -1)
    ours, theirs = (ops.box_convert(one, "xyxy", form).requires_grad_() for _ in range(2))
    target = ops.box_convert(other, "xyxy", form)
    mask = torch.rand(64, 3, generator=draws) > 0.3
    loss = LOSSES["giou"].model_validate({"type": "giou", "format": form})
    spec = TensorSpec((3, 4))
    made = loss.build(spec, spec, TensorSpec((3,), "bool"))
    value = made.sum(ours, torch.where(mask[..., None], target, torch.nan), mask, None) / mask.sum()
    boxes = ops.box_convert(theirs, form, "xyxy")
    wanted = ops.generalized_box_iou_loss(boxes[mask], other[mask], reduction="mean")
    assert torch.allclose(value, wanted, atol=1e-12)
    value.backward()
    wanted.backward()
    assert ours.grad is not None
    assert theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-9)


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def made_rows(count: int = 48) -> list[dict[str, Any]]:
    """None to three rectangles on grey, of a brightness each; their numbers as x, y, width, height; and a mask of
    them."""
    draws = np.random.default_rng(0)
    rows = []
    for _ in range(count):
        pixels, drawn = np.full((24, 32), 40, np.uint8), np.zeros((24, 32), np.uint8)
        boxes, kinds = [], []
        for number in range(int(draws.integers(0, 4))):
            left, top = int(draws.integers(0, 22)), int(draws.integers(0, 14))
            width, height = (int(each) for each in draws.integers(4, 10, 2))
            pixels[top : top + height, left : left + width] = 120 + 60 * (number % 2)
            drawn[top : top + height, left : left + width] = 1 + number % 2
            boxes.append([left, top, width, height])
            kinds.append(["dim", "bright"][number % 2])
        rows.append({"picture": png(pixels), "drawn": png(drawn), "boxes": boxes, "kinds": kinds})
    return rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(made_rows()), tmp_path / "made.parquet", row_group_size=8)
    return tmp_path / "made.parquet"


FIELDS: dict[str, Any] = {
    "image": {"type": "image", "column": "picture", "mode": "L"},
    "boxes": {
        "type": "boxes",
        "picture": "image",
        "column": "boxes",
        "labels": "kinds",
        "values": ["dim", "bright"],
        "format": "xywh",
        "out_format": "xywh",
        "length": 4,
        "out_relative": False,
        "min_visibility": 0.1,
    },
}
WITH_MASK: dict[str, Any] = FIELDS | {"mask": {"type": "mask", "column": "drawn", "num_classes": 3}}
CHANGES: list[Any] = [
    {"type": "random_flip"},
    {"type": "random_resized_crop", "size": [20, 26], "scale": [0.5, 1.0], "method": "nearest"},
    {"type": "resize", "size": [20, 26], "only": "evaluation"},
    {"type": "color_jitter", "strength": 0.1, "fields": ["image"]},
]


def test_one_draw_serves_pictures_and_boxes(look: Describe, table: Path) -> None:
    spec, found = look(source={"type": "parquet", "path": str(table)}, fields=FIELDS, transforms=CHANGES)
    assert not found
    assert spec is not None
    assert {field.name: str(field.tensor) for field in spec.fields} == {
        "image": "(B, 1, 20, 26)",
        "boxes": "(B, 4, 4)",
        "boxes.mask": "(B, 4)",
        "boxes.labels": "(B, 4)",
    }
    (batch,) = TrainingBatches(spec, BatchSpec(24, 1, 1, 24, 1, 2), 0, open_sets(spec)).step(1)
    images, boxes, mask, labels = (batch.tensors[name] for name in ("image", "boxes", "boxes.mask", "boxes.labels"))
    assert int(mask.sum()) > 20
    assert torch.equal(mask, labels < 2)
    assert bool((boxes[~mask] == 0).all())
    tops = []
    for image, own, inside in zip(images, boxes, mask, strict=True):
        bright = image[0] > 0.28  # not the grey around
        covered = torch.zeros_like(bright)
        for left, top, width, height in own[inside].tolist():
            covered[
                max(round(top) - 1, 0) : round(top + height) + 1, max(round(left) - 1, 0) : round(left + width) + 1
            ] = 1
            tops.append(image[0, min(int(top + height / 2), 19), min(int(left + width / 2), 25)].item())
        assert int((bright & ~covered).sum()) <= 6  # of a box that too little was left of
    assert float(np.mean(np.asarray(tops) > 0.28)) == 1.0


def epoch_of(rank: int, spec: DataSpec, num_ranks: int) -> dict[str, torch.Tensor]:
    """Two steps of 24 samples as one rank has them, by its loader processes; `ids` are the numbers of all ranks'
    samples, step by step."""
    made = TrainingBatches(spec, BatchSpec(24, num_ranks, 1, 24 // num_ranks, 1, 2), rank, open_sets(spec))
    batches = [batch for (batch,) in made.iterate(1, 2)]
    own = torch.stack([torch.from_numpy(np.asarray(batch.sample_ids)) for batch in batches])
    every = [torch.empty_like(own) for _ in range(num_ranks)]
    if num_ranks > 1:
        torch.distributed.all_gather(every, own)
    found = {name: torch.cat([batch.tensors[name] for batch in batches]) for name in batches[0].tensors}
    return found | {"own": own.ravel(), "ids": torch.cat(every if num_ranks > 1 else [own], 1)}


def test_the_same_bits_in_all_layouts_and_with_workers(look: Describe, table: Path) -> None:
    def of(num_ranks: int, **keys: Any) -> dict[str, torch.Tensor]:
        spec, found = look(source={"type": "parquet", "path": str(table)}, fields=WITH_MASK, transforms=CHANGES, **keys)
        assert spec is not None, found
        assert spec.is_block_shuffled == ("shuffle_window" in keys)
        ranks = forked(num_ranks, epoch_of, spec, num_ranks)
        assert all(torch.equal(each["ids"], ranks[0]["ids"]) for each in ranks)
        made = {name: torch.cat([each[name] for each in ranks]) for name in ranks[0] if name != "ids"}
        order = made.pop("own").argsort()
        return {name: each[order] for name, each in made.items()} | {"ids": ranks[0]["ids"].sort(1).values}

    whole = of(1)
    assert whole["ids"].ravel().sort().values.tolist() == list(range(48))
    assert len(whole["mask"].unique()) == 3
    rolled = of(1, shuffle_window=16)
    for wanted, keys in ((whole, {"workers": 0}), (rolled, {"workers": 2, "shuffle_window": 16})):
        found = of(2, **keys)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted), keys
    assert not torch.equal(rolled["ids"], whole["ids"])
    assert all(torch.equal(rolled[name], whole[name]) for name in whole if name != "ids")  # of the same samples


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transforms": [{"type": "mixup", "labels": []}]}, "boxes belong to one of them"),
        ({"transforms": [{"type": "cutmix", "labels": []}]}, "boxes belong to one of them"),
        ({"transforms": [{"type": "random_flip", "fields": ["boxes"]}]}, "only move together with their image"),
        ({"boxes": {"picture": "photo"}}, "no image field has this name"),
        ({"boxes": {"column": "kinds"}}, "not four numbers"),
        ({"boxes": {"column": "picture"}}, "boxes are lists of four numbers"),
        ({"boxes": {"length": 2}}, "has 3 boxes, and `length` is 2"),
        ({"boxes": {"format": "xyxy"}}, "as left, top, right, bottom has no area"),
        ({"boxes": {"values": ["dim"]}}, "`bright`, which is not in `values`"),
    ],
)
def test_what_does_not_fit_is_said_before_the_run(
    look: Describe, table: Path, change: dict[str, Any], words: str
) -> None:
    fields = FIELDS | {"boxes": FIELDS["boxes"] | change.get("boxes", {})}
    spec, found = look(
        source={"type": "parquet", "path": str(table)}, fields=fields, transforms=change.get("transforms", [])
        or [{"type": "resize", "size": [20, 26]}],
    )  # fmt: skip
    assert spec is None
    assert any(words in each.message for each in found), found


def test_bad_rows_are_skipped_and_listed(look: Describe, tmp_path: Path) -> None:
    rows = made_rows(12)
    for row in rows:
        del row["picture"], row["drawn"]
        row["path"] = "one.png"
    rows[3]["boxes"], rows[5]["kinds"] = [[5, 5, -2, 3]], ["other"] * (len(rows[5]["boxes"]) + 1)
    (tmp_path / "one.png").write_bytes(png(np.zeros((24, 32), np.uint8)))
    (tmp_path / "made.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    image = {"type": "image", "column": "path", "mode": "L", "folder": str(tmp_path), "size": [12, 16]}
    spec, found = look(
        source={"type": "jsonl", "path": str(tmp_path / "made.jsonl")},
        fields=FIELDS | {"image": image},
        on_bad_row="skip",
    )
    assert spec is not None, found
    assert "2 rows" in found[0].message, found
    training = open_sets(spec)["training"]
    good = [row for at, row in enumerate(rows) if at not in (3, 5)]
    taken = training.prepared.gather(np.arange(12))
    first = np.asarray(good[0]["boxes"], np.float32).reshape(-1, 4) / 2
    assert np.allclose(taken["boxes"][0, : len(first)], first)  # the picture is brought to half its size


def test_the_sheet_draws_boxes_and_masks(look: Describe, table: Path) -> None:
    from declarative_train.packs.images.sheet import picture_sheet

    def drawn(fields: dict[str, Any]) -> np.ndarray:
        spec, found = look(source={"type": "parquet", "path": str(table)}, fields=fields, transforms=CHANGES)
        assert spec is not None, found
        content = picture_sheet(spec)
        assert content is not None
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))

    alone, both = drawn(FIELDS), drawn(WITH_MASK)
    head, cell = 28, 136  # of eight samples, the mask below the picture
    assert both.shape == (head + 16 * cell, *alone.shape[1:])
    rows = both[head:].reshape(8, 2, cell, *both.shape[1:])
    assert np.array_equal(rows[:, 0].reshape(-1, *alone.shape[1:]), alone[head:])
    assert int((alone == (230, 60, 30)).all(2).sum()) > 500
    masks = rows[:, 1]
    assert not (masks == (230, 60, 30)).all(3).any()
    of_classes = [[value, value, value] for value in (0, 128, 255)]  # of 3 classes, and the white of the sheet
    colours, counts = np.unique(masks.reshape(-1, 3), axis=0, return_counts=True)
    assert colours.tolist() == of_classes
    assert counts.min() > 2_000
    for column in range(5):  # as decoded, in three epochs and an evaluation, with the rectangles of both classes
        left = 8 + column * cell
        shown = masks[:, :96, left : left + 128]
        assert {0, 128, 255} <= set(np.unique(shown).tolist()), column
