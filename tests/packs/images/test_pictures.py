"""Pictures: what is decoded, what transforms make of it, and that no way of running changes a bit of it."""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from declarative_train.components.counter_rng import Drawn
from declarative_train.components.data import BadValueError, Column
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.source import record_file
from declarative_train.data.spec import BatchSpec, DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.files.paths import SourceError
from declarative_train.inference.fields import RowConverter, columns_of_folder
from declarative_train.inference.reading import open_input
from declarative_train.packs.images.image import ImageField, pillow_image
from declarative_train.packs.images.image_folder import ImageFolderDataset
from declarative_train.packs.tables import tar
from declarative_train.packs.tables.tar import TarDataset
from tests.data.conftest import Described

Describe = Callable[..., Described]
FIELDS: dict[str, dict[str, object]] = {
    "image": {"type": "image", "column": "image"},
    "label": {"type": "category", "column": "label"},
}
CHANGES: list[dict[str, object]] = [
    {"type": "random_resized_crop", "size": 12, "only": "training"},
    {"type": "random_flip"},
    {"type": "trivial_augment"},
    {"type": "color_jitter", "strength": 0.4, "hue": 0.1},
    {"type": "resize", "size": 14, "only": "evaluation"},
    {"type": "center_crop", "size": 12, "only": "evaluation"},
    {"type": "normalize", "mean": "imagenet", "std": "imagenet"},
    {"type": "random_erasing", "p": 0.8},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """37 pictures of three classes, of different sizes and modes."""
    root = tmp_path_factory.mktemp("pictures")
    draw = np.random.default_rng(0)
    for number in range(37):
        inside = root / f"class_{number % 3}"
        inside.mkdir(exist_ok=True)
        shape = (20 + number % 5, 18 + number % 7, 3)
        picture = Image.fromarray(draw.integers(0, 256, shape, dtype=np.uint8))
        picture = picture.convert("L") if number % 4 == 0 else picture
        picture.save(inside / f"{number:02}.{'jpg' if number % 2 else 'png'}")
    (root / "notes.txt").write_text("not a picture")
    (root / "class_0" / ".hidden.png").write_text("not looked at")
    return root


def described(look: Describe, folder: Path, **keys: Any) -> DataSpec:
    source = {"type": "image_folder", "path": str(folder)}
    spec, found = look(source=source, fields=FIELDS, split={"validation": 0.2}, transforms=CHANGES, **keys)
    assert not found
    assert spec is not None
    return spec


def batch_spec(ranks: int, total: int = 29) -> BatchSpec:
    return BatchSpec(8, ranks, 1, 8 // ranks, 1, -(-total // 8))


def steps(spec: DataSpec, ranks: int, first: int, count: int) -> dict[tuple[int, int], np.ndarray]:
    """Every sample's pixels, by step and number."""
    found = {}
    sets = open_sets(spec)
    for rank in range(ranks):
        batches = TrainingBatches(spec, batch_spec(ranks), rank, sets)
        for step, chunks in enumerate(batches.iterate(first, count), first):
            for batch in chunks:
                for row, sample in enumerate(batch.sample_ids.tolist()):
                    found[step, sample] = batch.tensors["image"][row].numpy().copy()
    return found


def test_a_folder_is_a_table_in_sorted_order(folder: Path) -> None:
    table = ImageFolderDataset(path=str(folder)).open()
    assert table.num_rows == 37
    read = table.read(["label", "path", "image"], slice(0, 37))
    assert read["label"].tolist() == [f"class_{kind}" for kind in range(3) for _ in range(13 - (kind > 0))]
    assert read["path"].tolist() == sorted(read["path"].tolist())
    assert read["image"][3] == Path(read["path"][3]).read_bytes()
    picked = table.read(["path"], np.array([5, 5, 0]))["path"]
    assert picked.tolist() == [read["path"][5], read["path"][5], read["path"][0]]
    assert table.place(0).endswith("class_0/00.png")


def test_a_folder_has_the_columns_of_the_table_that_the_model_read(
    look: Describe, folder: Path, tmp_path: Path
) -> None:
    """The model read a csv of file names. The classes are numbers in the csv, and text in the folder."""
    for kind in range(3):
        shutil.copytree(folder / f"class_{kind}", tmp_path / "new" / str(kind))
    files = sorted(file.relative_to(tmp_path / "new") for file in (tmp_path / "new").glob("*/[0-9]*"))
    rows = "".join(f"{file},{file.parent}\n" for file in files)
    (tmp_path / "files.csv").write_text(f"photo,kind\n{rows}")
    fields: dict[str, dict[str, object]] = {
        "image": {"type": "image", "column": "photo", "folder": str(tmp_path / "new"), "size": 8},
        "label": {"type": "category", "column": "kind"},
    }
    spec, found = look(source={"type": "csv", "path": str(tmp_path / "files.csv")}, fields=fields)
    assert not found
    assert spec is not None
    assert columns_of_folder(spec) == {"image": "photo", "label": "kind"}
    opened = open_input(str(tmp_path / "new"), spec.source, names=columns_of_folder(spec))
    ((chunk, values),) = RowConverter(spec, ["image", "label"], opened, ["path"]).chunks()
    assert chunk.num_rows == len(files)
    assert values["label"].tolist() == [int(str(file.parent)) for file in files]
    assert values["image"].shape == (len(files), 3, 8, 8)


def test_a_folder_without_pictures_and_one_that_is_not_there_say_so(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no picture in"):
        ImageFolderDataset(path=str(tmp_path)).open()
    with pytest.raises(SourceError, match="there is no folder"):
        ImageFolderDataset(path=str(tmp_path / "pets")).open()


def test_a_flat_folder_has_no_classes(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    table = ImageFolderDataset(path=str(tmp_path)).open()
    assert list(table.columns) == ["image", "path"]
    assert "label" in table.left_out


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "a.png")
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    assert ImageFolderDataset(path=str(tmp_path)).open().num_rows == 1


def test_the_record_of_a_folder_follows_its_files(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "a.png")
    before = record_file(str(tmp_path), whole=True)
    assert record_file(str(tmp_path), whole=False) == before
    (tmp_path / "a" / "a.png").rename(tmp_path / "a" / "b.png")
    assert record_file(str(tmp_path), whole=True).sha256 != before.sha256


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.timeout(60)
def test_pixels_are_the_same_to_the_bit(look: Describe, folder: Path, ranks: int, workers: int) -> None:
    whole = steps(described(look, folder), 1, 1, 8)
    found = steps(described(look, folder, workers=workers), ranks, 1, 8)
    assert found.keys() == whole.keys()
    assert len(whole) == 2 * 30  # two epochs, each sample once in each
    assert all(np.array_equal(found[key], whole[key]) for key in whole)
    resumed = steps(described(look, folder, workers=workers), ranks, 6, 3)
    assert all(np.array_equal(pixels, whole[key]) for key, pixels in resumed.items())


def test_epochs_and_samples_draw_apart_and_evaluations_do_not_draw(look: Describe, folder: Path) -> None:
    spec = described(look, folder)
    sets = open_sets(spec)
    one, other = (sets["training"].gather(np.arange(4), epoch)["image"] for epoch in (0, 1))
    assert all(not np.array_equal(one[row], other[row]) for row in range(4))
    evaluated = [
        [
            batch.tensors["image"].numpy()
            for batch in EvaluationBatches(spec, "validation", sets, batch_size=3).iterate()
        ]
        for _ in range(2)
    ]
    assert all(np.array_equal(*pair) for pair in zip(*evaluated, strict=True))


def test_the_spec_says_shape_and_range(look: Describe, folder: Path) -> None:
    tensor = described(look, folder).fields[0].tensor
    assert tensor.shape == (3, 12, 12)
    low, high = tensor.interval or (0, 0)
    assert low == pytest.approx(-0.485 / 0.229)
    assert high == pytest.approx((1 - 0.406) / 0.225)


@pytest.mark.parametrize(
    ("transforms", "code", "words"),
    [
        ([], "D041", "its images have no common size"),
        ([{"type": "center_crop", "size": 8, "only": "training"}], "D041", "8 x 8 in training and each its own size"),
        ([{"type": "resize", "size": 8, "fields": ["label"]}], "D042", "`label` is not a field of images"),
        ([{"type": "resize", "size": 8, "fields": ["imag"]}], "D042", "there is no field `imag`"),
        ([{"type": "random_flip", "only": "evaluation"}], "D042", "`random_flip` is random"),
        (
            [{"type": "normalize", "mean": [0.5], "std": [0.5]}, {"type": "center_crop", "size": 8}],
            "D042",
            "an entry above has converted them to numbers",
        ),
    ],
)
def test_what_does_not_fit_is_said(
    look: Describe, folder: Path, transforms: list[dict[str, object]], code: str, words: str
) -> None:
    spec, found = look(source={"type": "image_folder", "path": str(folder)}, fields=FIELDS, transforms=transforms)
    assert spec is None
    assert any(each.code == code and words in each.message for each in found), found


@pytest.fixture
def shards(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The pictures of `folder` in two archives, each with its class as text."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    paths = sorted(folder.glob("class_*/[0-9]*"))
    for number, mine in enumerate((paths[:20], paths[20:])):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for path in mine:
                content = {"img": path.read_bytes(), "cls": path.parent.name.encode()}
                for ending, data in content.items():
                    member = tarfile.TarInfo(f"./{path.parent.name}/{path.stem}.{ending}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
    return tmp_path


def test_archives_and_a_folder_are_the_same_rows(look: Describe, folder: Path, shards: Path) -> None:
    table = TarDataset(path=str(shards / "*.tar")).open()
    whole = ImageFolderDataset(path=str(folder)).open().read(["image", "label"], slice(0, 37))
    assert list(table.columns) == ["key", "img", "cls"]
    draw = np.random.default_rng(0).permutation(37)
    read = table.read(["img", "cls", "key"], draw)
    assert read["img"].tolist() == whole["image"][draw].tolist()
    assert read["cls"].tolist() == whole["label"][draw].tolist()
    assert table.place(36).startswith("`class_2/")
    fields = {"image": {"type": "image", "column": "img"}, "label": {"type": "category", "column": "cls"}}
    source = {"type": "tar", "path": str(shards / "*.tar")}
    spec, found = look(source=source, fields=fields, split={"validation": 0.2}, transforms=CHANGES)
    assert not found
    assert spec is not None
    packed, loose = steps(spec, 1, 1, 4), steps(described(look, folder), 1, 1, 4)
    assert all(np.array_equal(packed[key], loose[key]) for key in loose)


def test_the_index_of_an_archive_is_made_once(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = shards / "0.tar"
    before = TarDataset(path=str(path)).open().read(["img"], slice(0, 20))["img"].tolist()
    with monkeypatch.context() as patched:
        patched.setattr(tar, "_build_index", None)  # called once more, it fails
        assert TarDataset(path=str(path)).open().read(["img"], slice(0, 20))["img"].tolist() == before
    with tarfile.open(path, "a") as archive:
        member = tarfile.TarInfo("new/1.img")
        archive.addfile(member, io.BytesIO())
    assert TarDataset(path=str(path)).open().num_rows == 21
    for kept in (shards / "cache" / "dtrain" / "tar").iterdir():
        kept.write_text("[")
    assert TarDataset(path=str(path)).open().num_rows == 21


def test_archives_that_cannot_be_read_say_so(shards: Path) -> None:
    (shards / "text.tar").write_text("no archive " * 100)
    with pytest.raises(SourceError, match="is not a whole tar archive"):
        TarDataset(path=str(shards / "text.tar")).open()
    (shards / "a.tar.gz").write_bytes(b"")
    with pytest.raises(SourceError, match="is compressed"):
        TarDataset(path=str(shards / "a.tar.gz")).open()
    table = TarDataset(path=str(shards / "1.tar")).open()
    content = (shards / "1.tar").read_bytes()
    (shards / "1.tar").write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match="changed while"):
        table.read(["img"], slice(0, 17))


def test_parquet_holds_files_too(look: Describe, folder: Path, tmp_path: Path) -> None:
    whole = ImageFolderDataset(path=str(folder)).open().read(["image", "label"], slice(0, 37))
    files = whole["image"].tolist()
    columns = {"image": files, "hub": [{"bytes": each, "path": None} for each in files], "label": whole["label"]}
    pq.write_table(pa.table(columns), tmp_path / "p.parquet", row_group_size=10)
    loose = steps(described(look, folder), 1, 1, 4)
    for column in ("image", "hub"):
        fields = {"image": {"type": "image", "column": column}, "label": {"type": "category", "column": "label"}}
        source = {"type": "parquet", "path": str(tmp_path / "p.parquet")}
        spec, found = look(source=source, fields=fields, split={"validation": 0.2}, transforms=CHANGES)
        assert not found
        assert spec is not None
        packed = steps(spec, 1, 1, 4)
        assert all(np.array_equal(packed[key], loose[key]) for key in loose)


def png(picture: Image.Image, **keys: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "PNG", **keys)
    return stream.getvalue()


def decoded(content: bytes, **keys: Any) -> np.ndarray:
    field = ImageField(column="image", **keys)
    made: np.ndarray = field.convert([np.array([content, None], object)[:1]], [Column("image", "bytes")], {})[0]
    return made


def test_modes_become_the_one_that_is_asked_for() -> None:
    grey = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16
    assert np.allclose(decoded(png(Image.fromarray(grey)), mode="L")[0], grey / 255, atol=1e-6)
    deep = Image.fromarray((grey.astype(np.uint16) << 8) + 7)
    assert np.allclose(decoded(png(deep), mode="L")[0], grey / 255, atol=1e-6)  # 16 bits
    assert decoded(png(Image.fromarray(grey))).shape == (3, 4, 4)
    palette = Image.fromarray(grey).convert("P")
    assert decoded(png(palette, transparency=b"\x00" * 256), mode="RGBA").shape == (4, 4, 4)
    stream = io.BytesIO()
    Image.fromarray(np.ones((4, 4), np.float32)).save(stream, "TIFF")
    with pytest.raises(BadValueError, match="fractions"):
        decoded(stream.getvalue())


def test_pictures_are_turned_as_their_exif_says() -> None:
    picture = Image.new("RGB", (6, 4))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(png(picture, exif=exif)).shape == (3, 6, 4)


def test_a_file_and_an_array_give_the_same_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    field = ImageField(column="image", size=(5, 6))
    arrays = field.convert([pixels], [Column("image", "uint8", (5, 6, 3))], {})
    files = [decoded(png(Image.fromarray(each)), size=(5, 6)) for each in pixels]
    assert np.array_equal(arrays, np.stack(files))


def test_a_large_picture_is_read_without_a_warning_of_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    file = png(Image.new("L", (20, 15)))
    pillow_image.cache_clear()  # another test has put the filters of warnings back
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 200)
    assert decoded(file).shape == (3, 15, 20)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(BadValueError, match="exceeds limit"):
        decoded(file)


def test_a_torn_picture_ends_the_run_with_its_name(
    look: Describe, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(12):
        content = png(Image.fromarray(np.full((8, 8, 3), number, np.uint8)))
        (tmp_path / f"{number:02}.png").write_bytes(content if number != 10 else content[:50])
    fields = {"image": {"type": "image", "column": "image", "size": 8}}
    source = {"type": "image_folder", "path": str(tmp_path)}
    spec, found = look(source=source, fields=fields)
    assert [each.code for each in found] == ["D040"]  # all of a small folder are decoded before the run
    assert found[0].message.endswith("10.png")
    monkeypatch.setattr("declarative_train.data.prepared_set.DECODED_BYTES", 0)
    spec, found = look(source=source, fields=fields)
    assert not found
    assert spec is not None
    with pytest.raises(DataError, match=r"`image` cannot be decoded: .*, in .*10\.png"):
        open_sets(spec)["training"].gather(np.arange(12))


def test_a_link_that_leads_nowhere_is_a_bad_row(
    look: Describe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("declarative_train.data.prepared_set.DECODED_BYTES", 0)  # as in a large folder
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number:02}.png")
    (tmp_path / "10b.png").symlink_to(tmp_path / "nowhere.png")
    assert record_file(str(tmp_path), whole=True).sha256
    fields = {"image": {"type": "image", "column": "image", "size": 8}}
    source = {"type": "image_folder", "path": str(tmp_path)}
    spec, found = look(source=source, fields=fields)
    assert not found
    assert spec is not None
    with pytest.raises(DataError, match=r"`image` cannot be decoded: no such file or directory, in .*10b\.png"):
        open_sets(spec)["training"].gather(np.arange(13))
    spec, found = look(source=source, fields=fields, on_bad_row="skip")
    assert spec is not None
    seen = open_sets(spec)["training"].gather(np.arange(13))["image"][:, 0, 0, 0] * 255
    assert [round(float(each)) for each in seen] == [*range(11), 11, 11]


@pytest.mark.parametrize("kind", sorted(TRANSFORMS))
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_every_transform_keeps_what_it_promises(kind: str, mode: str) -> None:
    """Mode, size as the recipe tells it, no change of its input, the same again for the same draw."""
    keys: dict[str, dict[str, object]] = {
        "color_jitter": {"strength": 0.5},
        "cutmix": {"labels": ()},
        "mixup": {"labels": ()},
        "normalize": {"mean": (0.5,), "std": (0.25,)},
        "random_rotation": {"degrees": 30.0},
    }
    sized = {"center_crop", "random_crop", "random_resized_crop", "resize"}
    transform = TRANSFORMS[kind].model_validate(
        {"type": kind, **keys.get(kind, {}), **({"size": 9} if kind in sized else {})}
    )
    pixels = np.random.default_rng(0).integers(0, 256, (14, 11, 4), dtype=np.uint8)
    picture = Image.fromarray(pixels).convert(mode)
    field = ImageField.model_validate({"column": "image", "mode": mode})
    before: Any = field.numbers(picture) if transform.on_numbers else picture
    for sample in range(40):
        one, other, both = (transform.apply([before] * count, Drawn(5, sample)) for count in (1, 1, 2))
        held = [np.asarray(each) for each in (*one, *other, *both)]
        assert all(np.array_equal(held[0], each) for each in held[1:])
        if transform.on_numbers:
            low, high = transform.interval_after((0.0, 1.0), before.shape[0])
            assert held[0].shape == before.shape
            assert held[0].dtype == np.float32
            assert low - 1e-5 <= held[0].min() <= held[0].max() <= high + 1e-5
        else:
            assert one[0].mode == mode
            assert (one[0].height, one[0].width) == transform.size_after((14, 11))
    assert np.array_equal(np.asarray(picture), np.asarray(Image.fromarray(pixels).convert(mode)))


def test_sizes_are_torchvisions() -> None:
    resize = TRANSFORMS["resize"].model_validate({"size": 8})
    assert resize.size_after((20, 31)) == (8, 12)
    assert resize.size_after((31, 20)) == (12, 8)
    assert resize.size_after((None, None)) == (None, None)


def test_draws_cover_their_range() -> None:
    found = [Drawn(7, sample).below(4) for sample in range(4000)]
    assert all(900 < found.count(value) < 1100 for value in range(4))
    assert sorted(Drawn(7, 1).order(5)) == [0, 1, 2, 3, 4]
    mean = np.mean([Drawn(3, sample).uniform(2, 4) for sample in range(4000)])
    assert mean == pytest.approx(3, abs=0.05)
