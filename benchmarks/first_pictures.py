"""Benchmark of first recipes for pictures: recipes of `dtrain init --from FOLDER`, used without a change, compared with
timm's defaults.

    python -m benchmarks.first_pictures [--only NAME ...] [--epochs 20] [--out FILE]

Each folder has generated pictures, or pictures that come with scikit-learn. `init` writes a recipe for the folder of
training pictures. timm's side is its resnet18 without published weights, with the defaults of its training script: its
transforms, its optimizer (sgd with Nesterov's momentum, lr 0.05, weight decay 2e-5), label smoothing of 0.1 and a
cosine schedule. Both are compared on pictures that neither was trained on, and by the time that they took.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

SIDE = 48
TRAINING, HELD_OUT = 60, 40  # pictures of each class
Make = Callable[[np.random.Generator, int], Image.Image]


def _canvas(random: np.random.Generator) -> Image.Image:
    noise = random.normal(128, 25, (SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8)
    return Image.fromarray(noise)


def _colour(random: np.random.Generator) -> tuple[int, int, int]:
    red, green, blue = (int(each) for each in random.integers(0, 256, 3))
    return red, green, blue


def shapes(random: np.random.Generator, label: int) -> Image.Image:
    """Draw a circle, a square, a triangle or a cross (`label`), of any colour and size at any place."""
    picture = _canvas(random)
    draw, size = ImageDraw.Draw(picture), int(random.integers(12, 26))
    x, y = (int(each) for each in random.integers(2, SIDE - size - 2, 2))
    box, fill = (x, y, x + size, y + size), _colour(random)
    if label == 0:
        draw.ellipse(box, fill=fill)
    elif label == 1:
        draw.rectangle(box, fill=fill)
    elif label == 2:
        draw.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=fill)
    else:
        draw.line((x, y, x + size, y + size), fill=fill, width=4)
        draw.line((x, y + size, x + size, y), fill=fill, width=4)
    return picture


def counts(random: np.random.Generator, label: int) -> Image.Image:
    """Draw one to four dots; `label` is their number, from 0."""
    picture = _canvas(random)
    draw = ImageDraw.Draw(picture)
    cells = random.permutation(9)[: label + 1]
    for cell in cells.tolist():
        x, y = 4 + 15 * (cell % 3) + int(random.integers(0, 5)), 4 + 15 * (cell // 3) + int(random.integers(0, 5))
        draw.ellipse((x, y, x + 8, y + 8), fill=_colour(random))
    return picture


def stripes(random: np.random.Generator, label: int) -> Image.Image:
    """Draw stripes in one of four directions (`label`)."""
    y, x = np.mgrid[:SIDE, :SIDE]
    angle = np.pi * label / 4 + random.normal(0, 0.12)
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) / random.uniform(1.2, 2.5) + random.uniform(0, 6))
    shown = 128 + 60 * wave + random.normal(0, 40, (SIDE, SIDE))
    return Image.fromarray(shown.clip(0, 255).astype(np.uint8))


def hues(random: np.random.Generator, label: int) -> Image.Image:
    """Draw noise in which one of five hues (`label`) is a little more frequent than the others."""
    hue = (random.normal(51 * label, 30, (SIDE, SIDE)) % 256).astype(np.uint8)
    rest = random.integers(60, 255, (SIDE, SIDE, 2)).astype(np.uint8)
    return Image.fromarray(np.dstack([hue, rest]), "HSV").convert("RGB")


def letters(random: np.random.Generator, label: int) -> Image.Image:
    """Draw one of eight letters (`label`), rotated and shifted."""
    picture = Image.new("L", (SIDE, SIDE), int(random.integers(150, 255)))
    place = tuple(int(each) for each in random.integers(8, 24, 2))
    ImageDraw.Draw(picture).text(place, "ABEHKRSX"[label], fill=int(random.integers(0, 90)), font_size=18)
    turned = picture.rotate(float(random.normal(0, 12)), fillcolor=200)
    return Image.fromarray((np.asarray(turned) + random.normal(0, 20, (SIDE, SIDE))).clip(0, 255).astype(np.uint8))


def digits(random: np.random.Generator, label: int) -> Image.Image:
    """Return a handwritten digit from scikit-learn, enlarged."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    number = random.choice(np.flatnonzero(found.target == label))
    return Image.fromarray((found.images[number] * 15.9).astype(np.uint8)).resize(
        (SIDE, SIDE), Image.Resampling.BICUBIC
    )


FOLDERS: dict[str, tuple[Make, int]] = {
    "shapes": (shapes, 4),
    "counts": (counts, 4),
    "stripes": (stripes, 4),
    "hues": (hues, 5),
    "letters": (letters, 8),
    "digits": (digits, 10),
}


def write(folder: Path, name: str) -> None:
    make, num_classes = FOLDERS[name]
    random = np.random.default_rng(0)
    for part, number in (("training", TRAINING), ("held_out", HELD_OUT)):
        for label in range(num_classes):
            place = folder / part / f"class_{label}"
            place.mkdir(parents=True)
            for at in range(number):
                make(random, label).save(place / f"{at:03}.png")


def held_out(folder: Path) -> Iterator[tuple[Path, int]]:
    for path in sorted((folder / "held_out").rglob("*.png")):
        yield path, int(path.parent.name.removeprefix("class_"))


def ours(folder: Path) -> float:
    import declarative_train as dt
    from declarative_train.__main__ import main

    before = os.getcwd()
    os.chdir(folder)
    try:
        if main(["init", "--from", "training", "--target", "label"]) != 0:
            raise RuntimeError(f"init fails for {folder.name}")
        recipe = next(path for path in folder.glob("*.yaml"))
        run = dt.load(recipe, set={"layout.device": "cpu"}).run(quiet=True)
        answers: Any = run.predict("held_out")
        truth = [f"class_{label}" for _, label in held_out(folder)]
        return float(np.mean(answers[answers.columns[0]].astype(str).to_numpy() == np.array(truth)))
    finally:
        os.chdir(before)


def timms(folder: Path, num_classes: int, epochs: int) -> float:
    import timm
    import torch
    from timm.data import ImageDataset, create_transform
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    torch.manual_seed(0)
    model = timm.create_model("resnet18", num_classes=num_classes)
    training = ImageDataset(str(folder / "training"), transform=create_transform(64, is_training=True))
    loader = torch.utils.data.DataLoader(training, batch_size=32, shuffle=True, drop_last=True)
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, weight_decay=2e-5, momentum=0.9)
    schedule = CosineLRScheduler(optimizer, t_initial=epochs, warmup_t=min(5, epochs // 4), warmup_lr_init=1e-5)
    smooth = LabelSmoothingCrossEntropy(0.1)
    for epoch in range(epochs):
        schedule.step(epoch)
        model.train()
        for pictures, labels in loader:
            optimizer.zero_grad()
            smooth(model(pictures), labels).backward()
            optimizer.step()
    model.eval()
    look = create_transform(64, is_training=False)
    right = 0
    with torch.no_grad():
        for path, label in held_out(folder):
            right += int(model(look(Image.open(path).convert("RGB"))[None]).argmax()) == label
    return right / (HELD_OUT * num_classes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(FOLDERS))
    parser.add_argument("--epochs", type=int, default=20, help="those of timm's model")
    parser.add_argument("--out", help="file for the figures, as JSON")
    args = parser.parse_args()
    found = {}
    print(f"{'folder':<10}{'classes':>8}{'init':>8}{'seconds':>9}{'timm':>8}{'seconds':>9}", flush=True)
    for name in args.only or FOLDERS:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write(folder, name)
            start = time.perf_counter()
            own = ours(folder)
            middle = time.perf_counter()
            other = timms(folder, FOLDERS[name][1], args.epochs)
            took = middle - start, time.perf_counter() - middle
        found[name] = {"init": own, "init_s": took[0], "timm": other, "timm_s": took[1]}
        print(f"{name:<10}{FOLDERS[name][1]:>8}{own:>8.3f}{took[0]:>9.0f}{other:>8.3f}{took[1]:>9.0f}", flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(found, indent=1))
    better = sum(each["init"] >= each["timm"] for each in found.values())
    print(f"at least as good as timm's defaults on {better} of {len(found)}")


if __name__ == "__main__":
    main()
