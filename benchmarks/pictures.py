"""Images per second: the loader of a recipe compared with torch's DataLoader. Rounds are interleaved.

    python -m benchmarks.pictures [--rounds 5] [--workers 0 1 2] [--write]

DataLoader is measured with a dataset of a few lines written by hand, and with torchvision's ImageFolder. All decode the
same JPEG files with Pillow, and apply the same transforms (random resized crop to 224, flip, normalisation). They make
batches of 32, with the same number of loader processes. A round reads the set once; the time to start the loaders is
not counted.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from benchmarks.report import write_table
from declarative_train.data.build_spec import describe
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.recipe import load

PICTURES, BATCH, SIZE = 768, 32, 224
WARM = 4  # batches before the clock starts
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RECIPE = """
data:
  source: {{type: image_folder, path: {folder}}}
  fields:
    image: {{type: image, column: image}}
    label: {{type: category, column: label}}
  transforms:
    - {{type: random_resized_crop, size: 224}}
    - {{type: random_flip}}
    - {{type: resize, size: [224, 224], only: evaluation}}
    - {{type: normalize, mean: imagenet, std: imagenet}}
model: {{graph: {{flat: {{type: flatten, input: image}}, logits: {{type: linear, out_features: 4}}}}}}
objective: {{loss: {{type: cross_entropy, input: logits, target: label}}}}
training: {{epochs: 1, global_batch_size: 32, optimizer: {{type: sgd, lr: 0.1}}}}
"""


class ByHand(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        classes = sorted({path.parent.name for path in self.files})
        self.labels = [classes.index(path.parent.name) for path in self.files]
        self.mean, self.std = (torch.tensor(each).view(3, 1, 1) for each in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[number]) as opened:
            picture = opened.convert("RGB")
        left, top, width, height = crop(*picture.size)
        box = (left, top, left + width, top + height)
        picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box)
        if random.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()
        return (pixels.float().div(255) - self.mean) / self.std, self.labels[number]


def crop(width: int, height: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side


def make_pictures(folder: Path) -> None:
    """Write pictures of 400 x 300 that are like photographs: colours that change slowly, and some noise."""
    draw = np.random.default_rng(0)
    for number in range(PICTURES):
        path = folder / f"class_{number % 4}" / f"{number:04}.jpg"
        path.parent.mkdir(exist_ok=True)
        coarse = Image.fromarray(draw.integers(0, 256, (9, 12, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((400, 300), Image.Resampling.BICUBIC), np.int16)
        noisy = smooth + draw.integers(-12, 13, smooth.shape)
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path, quality=90)


def data_of(folder: Path) -> DataSpec:
    recipe = folder / "bench.yaml"
    recipe.write_text(RECIPE.format(folder=folder))
    found = load(str(recipe)).recipe
    assert found is not None
    data, diagnostics = describe(found.data, found.seed, found.span)
    assert data is not None, diagnostics
    return data


def ours(data: DataSpec, workers: int) -> Iterator[torch.Tensor]:
    spec = BatchSpec(BATCH, 1, 1, BATCH, 1, PICTURES // BATCH)
    batches = TrainingBatches(replace(data, workers=workers), spec, 0, open_sets(data))
    for chunks in batches.iterate(1, PICTURES // BATCH):
        yield chunks[0].tensors["image"]


def by_hand(dataset: Dataset[tuple[torch.Tensor, int]], workers: int) -> Iterator[torch.Tensor]:
    for pixels, _ in DataLoader(dataset, BATCH, shuffle=True, num_workers=workers):
        yield pixels


def image_folder(folder: Path) -> Dataset[tuple[torch.Tensor, int]]:
    from torchvision import datasets, transforms

    changes = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    found: Dataset[tuple[torch.Tensor, int]] = datasets.ImageFolder(
        str(folder), transforms.Compose([*changes, transforms.Normalize(MEAN, STD)])
    )
    return found


def rate(batches: Iterator[torch.Tensor]) -> float:
    """Return the number of pictures per second."""
    for _ in range(WARM):
        next(batches)
    start, count = time.perf_counter(), 0
    for pixels in batches:
        assert pixels.shape == (BATCH, 3, SIZE, SIZE)
        count += BATCH
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pictures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| loader processes | ours, images/s | ours / by hand | ours / ImageFolder |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_pictures(folder)
        data = data_of(folder)
        for workers in args.workers:
            others = ByHand(folder), image_folder(folder)
            rounds = [
                [rate(ours(data, workers)), *(rate(by_hand(each, workers)) for each in others)]
                for _ in range(args.rounds)
            ]
            mine = median(each[0] for each in rounds)
            ratios = [median(each[0] / each[other] for each in rounds) for other in (1, 2)]
            lines.append(f"| {workers} | {mine:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
            print(lines[-1], flush=True)
    if args.write:
        write_table("pictures", "\n".join(lines))


if __name__ == "__main__":
    main()
