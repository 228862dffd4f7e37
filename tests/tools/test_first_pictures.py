"""`dtrain init --from FOLDER`: pictures in, a recipe out that lints clean; broken files and empty folders are named."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from declarative_train.__main__ import main
from declarative_train.tools.first_recipe import pictures

Image = pytest.importorskip("PIL.Image")
Captured = pytest.CaptureFixture[str]


def draw_folder(
    root: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 12, mode: str = "RGB", side: int = 40
) -> Path:
    """Pictures whose brightness tells their class; sides differ if they are larger than 32."""
    draw = random.Random(0)
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for at in range(each):
            size = (side, side) if side <= 32 else (side + draw.randint(0, 60), side + draw.randint(0, 60))
            level = draw.randint(0, 80) + 120 * (number % 2)
            color = level if mode in ("L", "I;16") else (level,) * len(mode)
            Image.new(mode, size, color).save(root / name / f"{at:02d}.png")
    return root


def init(folder: Path, *words: str) -> str:
    assert main(["init", "--from", str(folder), "-o", "made.yaml", "--force", *words]) == 0
    return Path("made.yaml").read_text()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures, "_find_published", lambda: None)


def test_small_grey_pictures_are_learned(capsys: Captured) -> None:
    text = init(draw_folder(Path("tiny"), each=30, mode="L", side=8))
    assert "8 x 8 pixels (width x height), L." in text
    assert "image: {type: image, column: image, mode: L, size: 8}" in text
    assert "random_crop, size: 8, padding: 1" in text
    assert "random_flip" not in text
    assert "small_images: true, out_features: 2" in text
    assert main(["lint", "made.yaml"]) == 0
    words = ["--quiet", "--set", "training.epochs=4", "--set", "layout.device=cpu"]
    assert main(["run", "made.yaml", *words]) == 0
    assert "best/validation/accuracy  1.0000" in capsys.readouterr().out


def test_photographs_are_cropped_mirrored_and_become_rgb(capsys: Captured) -> None:
    folder = draw_folder(Path("photos"), ("one", "two", "three"), side=100)
    Image.new("RGBA", (120, 110)).save(folder / "one" / "clear.png")
    text = init(folder)
    assert "All become RGB; transparency is dropped" in text
    for line in ("random_resized_crop, size: 96", "center_crop, size: 96", "random_flip", "mean: imagenet"):
        assert line in text
    assert "# 3 classes, with their pictures: one (13), three (12), two (12)." in text
    assert main(["lint", "made.yaml"]) == 0


def test_broken_files_and_empty_folders_are_named(capsys: Captured) -> None:
    folder = draw_folder(Path("photos"))
    (folder / "bird").mkdir()
    for name in ("cat", "dog"):
        (folder / name / "cut.png").write_bytes((folder / "cat" / "00.png").read_bytes()[:60])
    text = init(folder)
    shown = capsys.readouterr().out
    for name in ("cat", "dog"):
        assert f"broken: photos/{name}/cut.png: image file is truncated" in shown
        assert f"# - photos/{name}/cut.png: image file is truncated" in text
    assert "empty: the folder bird has no picture" in shown
    assert "Folders without a picture, so without a class: `bird`." in text
    assert "on_bad_row: skip" in text
    assert main(["lint", "made.yaml"]) == 0
    for command in (["lint"], ["data", "show"]):
        assert main([*command, "made.yaml", "--set", "data.on_bad_row=error"]) == 1
        seen = capsys.readouterr()
        assert "cut.png" in seen.out + seen.err
        assert "`on_bad_row: skip` under `data`" in seen.out + seen.err


@pytest.mark.parametrize(("column", "task"), [("kind", "category"), ("age", "normalize: standard")])
def test_a_table_of_file_names(column: str, task: str) -> None:
    draw_folder(Path("data/photos"))
    rows = [f"{name}/{at:02d}.png,{name},{at + 0.5}" for name in ("cat", "dog") for at in range(12)]
    Path("data/list.csv").write_text("file,kind,age\n" + "\n".join(rows) + "\n")
    text = init(Path("data/list.csv"), "--target", column)
    assert "image: {type: image, column: file, folder: data/photos}" in text
    assert task in text
    assert main(["lint", "made.yaml"]) == 0


def test_a_published_model_of_the_cache_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_find_published", lambda: "timm/resnet18.a1_in1k")
    text = init(draw_folder(Path("photos"), each=12, mode="L", side=8))
    assert "from: timm/resnet18.a1_in1k, out_features: 2" in text
    assert "exclude: [logits]" in text
    assert "random_resized_crop, size: 224" in text
    assert "mode: L" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from", "flat"], "the pictures in flat are in no folder of a class"),
        (["--from", "photos", "--target", "age"], "leave out --target, or give a table with the file names"),
        (["--from", "none"], "there is no picture in none"),
        (["--from", "single"], "`label` is `cat` in every row"),
        (["--from", "list.csv", "--target", "y"], "names pictures such as `lost/0.png`, which are neither in ."),
    ],
)
def test_why_there_is_no_recipe(words: list[str], said: str, capsys: Captured) -> None:
    draw_folder(Path("photos"), each=2)
    draw_folder(Path("single"), ("cat",))
    Path("none").mkdir()
    Path("flat").mkdir()
    Image.new("L", (8, 8)).save("flat/a.png")
    Path("list.csv").write_text("file,y\n" + "".join(f"lost/{at}.png,{at % 2}\n" for at in range(20)))
    assert main(["init", "-o", "made.yaml", *words]) in (1, 2)
    assert said in capsys.readouterr().err
