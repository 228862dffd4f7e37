"""JPEG files of real photographs, which scikit-learn and matplotlib ship: sizes and qualities of all kinds, turned by
their EXIF, grey, CMYK, progressive, and some of them torn."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.components.data import Column
from declarative_train.data.skipping import LOG, read_skipped
from declarative_train.packs.images.image import ImageField
from declarative_train.run.event import EvaluationDone
from tests.engine.runs import go

Image = pytest.importorskip("PIL.Image")
ORIENTATION = 0x0112
BYTES = Column("image", "bytes")
SHIPPED = {
    "temple": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "portrait": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
}
TURNED = {  # how a camera holds what `exif_transpose` turns back
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_90",
    7: "TRANSVERSE",
    8: "ROTATE_270",
}


def shipped(name: str) -> Path:
    package, path = SHIPPED[name]
    found = find_spec(package)
    if found is None or found.origin is None or not (Path(found.origin).parent / path).exists():
        pytest.skip(f"{package} with its photograph is not installed")
    return Path(found.origin).parent / path


def decoded(content: bytes, **keys: Any) -> np.ndarray:
    field = ImageField(column="image", **keys)
    return field.numbers(field.picture(content, BYTES))


def as_jpeg(picture: Any, path: Path, **keys: Any) -> bytes:
    picture.save(path, "JPEG", **keys)
    return path.read_bytes()


@pytest.mark.parametrize("name", SHIPPED)
def test_a_photograph_is_decoded_as_pillow_does(name: str) -> None:
    path = shipped(name)
    wanted = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1) / np.float32(255)
    assert np.allclose(decoded(path.read_bytes()), wanted, atol=1e-7)
    small = decoded(path.read_bytes(), size=32, mode="L")
    assert small.shape == (1, 32, 32)
    assert 0.05 < small.std() < 0.5


@pytest.mark.parametrize("orientation", TURNED)
def test_every_orientation_stands_upright(orientation: int, tmp_path: Path) -> None:
    upright = Image.open(shipped("temple")).crop((100, 60, 300, 190))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    stored = upright.transpose(Image.Transpose[TURNED[orientation]])
    content = as_jpeg(stored, tmp_path / "a.jpg", quality=95, exif=exif)
    plain = as_jpeg(upright, tmp_path / "b.jpg", quality=95)
    found = decoded(content)
    assert found.shape == (3, 130, 200)
    assert np.abs(found - decoded(plain)).mean() < 0.01  # blocks of 8 lie elsewhere


def test_grey_cmyk_and_progressive_files_become_what_is_asked_for(tmp_path: Path) -> None:
    photograph = Image.open(shipped("flower")).resize((90, 60))
    plain = decoded(as_jpeg(photograph, tmp_path / "plain.jpg", quality=95))
    ways: list[tuple[str, dict[str, Any]]] = [("RGB", {"progressive": True}), ("CMYK", {}), ("L", {})]
    for mode, keys in ways:
        content = as_jpeg(photograph.convert(mode), tmp_path / "other.jpg", quality=95, **keys)
        found = decoded(content)
        assert found.shape == (3, 60, 90)
        wanted = plain.mean(0, keepdims=True) if mode == "L" else plain
        assert np.abs(found - wanted).mean() < (0.06 if mode == "L" else 0.02), mode


@pytest.fixture
def album(tmp_path: Path) -> Iterator[Path]:
    """72 parts of the three, of sizes from 40 to 120, in all ways; of these 3 are torn."""
    draws = np.random.default_rng(0)
    for name in SHIPPED:
        photograph = Image.open(shipped(name)).convert("RGB")
        folder = tmp_path / "album" / name
        folder.mkdir(parents=True)
        for number in range(24):
            width, height = (int(side) for side in draws.integers(40, 121, 2))
            left, top = (
                int(draws.integers(0, most - side)) for most, side in zip(photograph.size, (width, height), strict=True)
            )
            part = photograph.crop((left, top, left + width, top + height))
            orientation = int(draws.integers(1, 9))
            if orientation > 1:
                part = part.transpose(Image.Transpose[TURNED[orientation]])
            exif = Image.Exif()
            exif[ORIENTATION] = orientation
            path = folder / f"{number:02}.{draws.choice(['jpg', 'jpeg', 'JPG'])}"
            content = as_jpeg(part, path, quality=int(draws.integers(30, 96)), exif=exif, progressive=number % 3 == 0)
            if number == 11:
                path.write_bytes(content[: len(content) // 3])
    yield tmp_path
    LOG.to(None)


def recipe() -> dict[str, Any]:
    conv = {"type": "conv2d", "kernel_size": 3, "padding": 1, "stride": 2}
    return {
        "name": "made",
        "data": {
            "source": {"type": "image_folder", "path": "album"},
            "fields": {
                "image": {"type": "image", "column": "image"},
                "label": {"type": "category", "column": "label"},
            },
            "transforms": [
                {"type": "random_resized_crop", "size": 32, "scale": [0.5, 1.0], "only": "training"},
                {"type": "random_flip"},
                {"type": "resize", "size": [32, 32], "only": "evaluation"},
                {"type": "normalize", "mean": "imagenet", "std": "imagenet"},
            ],
            "split": {"validation": {"type": "stratified", "fraction": 0.25, "column": "label"}},
            "on_bad_row": "skip",
        },
        "model": {
            "graph": {
                "one": {**conv, "out_channels": 16, "input": "image"},
                "act": {"type": "relu"},
                "two": {**conv, "out_channels": 32},
                "act2": {"type": "relu"},
                "pooled": "mean(act2, dim=[2, 3])",
                "logits": {"type": "linear", "out_features": 3},
            }
        },
        "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "label"}, "metrics": ["accuracy"]},
        "training": {"epochs": 15, "global_batch_size": 9, "optimizer": {"type": "adam", "lr": 5e-3}},
        "evaluation": {"every": "15 epochs"},
        "layout": {"device": "cpu"},
    }


@pytest.mark.long
@pytest.mark.timeout(120)
def test_photographs_are_learnt_and_torn_ones_listed(album: Path) -> None:
    """Which photograph a part is of."""
    done = go(album, recipe())
    assert done.code == 0
    assert done.of(EvaluationDone)[-1].values["validation/accuracy"] > 0.8  # guessing: 0.33
    skipped = read_skipped(str(done.run_dir / "skipped_rows.jsonl"))
    assert len(skipped) == 3, skipped
    assert all("11.j" in each.place.lower() and "cannot be decoded" in each.why for each in skipped), skipped
    again = go(album, recipe(), {"parallelism": "ddp", "layout": {"gpus": 3}, "data": {"workers": 1}}, max_steps=4)
    assert again.code == 0
