"""Block-shuffled wide tables, text and tar archives, each compared with a loop that reads the file in order. For
`benchmarks.tables`.

The wide table is a Parquet file with 100,000 rows of a class and 512 float32 in one column (205 MB), in row groups of
2,500. The loop reads pyarrow's row groups one after the other, and cuts them into batches. The text is 64 MB of bytes,
cut into samples of 1,024. The loop cuts batches from a memory map, and converts them to int64. The archive holds 2,048
JPEG files of 160 x 120 with their classes. The loop reads it with `tarfile`, member by member, decodes each file with
Pillow, and stacks them. With block shuffle, a fifth of the samples are mixed with each other.
"""

from __future__ import annotations

import io
import tarfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from declarative_train.data.build_spec import describe
from declarative_train.data.spec import DataSpec
from declarative_train.recipe import load

SHARE = 5  # one of so many samples is in memory
LENGTH, TEXTS, TEXT_BATCH = 1024, 1 << 16, 32
PICTURES, PICTURE_BATCH, WIDTH, HEIGHT = 2048, 32, 160, 120
NUMBERS, WIDE, GROUP, WIDE_BATCH = 512, 100_000, 2500, 256
VECTORS = f"""
data:
  source: {{{{type: parquet, path: {{path}}}}}}
  fields:
    x: {{{{column: vector, dtype: float32}}}}
    label: {{{{type: category, column: label}}}}
  shuffle_window: {WIDE // SHARE}
model: {{{{graph: {{{{logits: {{{{type: linear, out_features: 4, input: x}}}}}}}}}}}}
objective: {{{{loss: {{{{type: cross_entropy, input: logits, target: label}}}}}}}}
training: {{{{epochs: 1, global_batch_size: {WIDE_BATCH}, optimizer: {{{{type: sgd, lr: 0.1}}}}}}}}
"""
TEXT = f"""
data:
  source: {{{{type: text, path: {{path}}}}}}
  window: {{{{length: {LENGTH}, stride: {LENGTH}}}}}
  fields: {{{{x: {{{{column: tokens}}}}}}}}
  shuffle_window: {TEXTS // SHARE}
model: {{{{graph: {{{{vectors: {{{{type: embedding, num_embeddings: 256, embedding_dim: 8, input: x}}}},
  logits: {{{{type: linear, out_features: 256}}}}}}}}}}}}
objective: {{{{loss: {{{{type: cross_entropy, input: logits, target: x}}}}}}}}
training: {{{{epochs: 1, global_batch_size: {TEXT_BATCH}, optimizer: {{{{type: sgd, lr: 0.1}}}}}}}}
"""
TAR = f"""
data:
  source: {{{{type: tar, path: {{path}}}}}}
  fields:
    x: {{{{type: image, column: jpg, size: [{HEIGHT}, {WIDTH}]}}}}
    label: {{{{type: category, column: cls}}}}
  shuffle_window: {PICTURES // SHARE}
model: {{{{graph: {{{{flat: {{{{type: flatten, input: x}}}}, logits: {{{{type: linear, out_features: 4}}}}}}}}}}}}
objective: {{{{loss: {{{{type: cross_entropy, input: logits, target: label}}}}}}}}
training: {{{{epochs: 1, global_batch_size: {PICTURE_BATCH}, optimizer: {{{{type: sgd, lr: 0.1}}}}}}}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    """File to be read. `in_order`: function that returns an epoch of batches from the loop. `values`: number of values
    of a sample that are counted."""

    data: DataSpec
    batch: int
    in_order: Callable[[], Iterator[torch.Tensor]]
    values: int


def wide(folder: Path) -> Case:
    path = folder / "wide.parquet"
    write_wide(path)
    return Case(data_of(folder, VECTORS, path), WIDE_BATCH, lambda: wide_in_order(path), 1)


def text(folder: Path) -> Case:
    path = folder / "large.txt"
    path.write_bytes(np.random.default_rng(0).integers(97, 123, TEXTS * LENGTH, dtype=np.uint8).tobytes())
    return Case(data_of(folder, TEXT, path), TEXT_BATCH, lambda: text_in_order(path), LENGTH)


def archive(folder: Path) -> Case:
    path = folder / "large.tar"
    write_archive(path)
    return Case(data_of(folder, TAR, path), PICTURE_BATCH, lambda: archive_in_order(path), 1)


def data_of(folder: Path, text: str, path: Path) -> DataSpec:
    recipe = folder / "file.yaml"
    recipe.write_text(text.format(path=path))
    read = load(str(recipe))
    assert read.recipe is not None, read.diagnostics
    data, diagnostics = describe(read.recipe.data, 0, read.recipe.span)
    assert data is not None, diagnostics
    assert data.rolls, data
    return data


def write_wide(path: Path) -> None:
    draw, writer = np.random.default_rng(0), None
    for start in range(0, WIDE, GROUP):
        numbers = pa.array(draw.standard_normal(GROUP * NUMBERS, np.float32))
        labels = pa.array(np.arange(start, start + GROUP) % 4)
        made = pa.table({"vector": pa.FixedSizeListArray.from_arrays(numbers, NUMBERS), "label": labels})
        writer = writer or pq.ParquetWriter(path, made.schema)
        writer.write_table(made, row_group_size=GROUP)
    assert writer is not None
    writer.close()


def wide_in_order(path: Path) -> Iterator[torch.Tensor]:
    """Yield the batches of the wide table in the order of the file. The classes are read too, but not used. The warning
    that pyarrow's arrays are read-only is turned off: nothing writes to them."""
    warnings.filterwarnings("ignore", "The given NumPy array is not writable")
    file = pq.ParquetFile(path, memory_map=True)
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, use_threads=False)
        vectors = group["vector"].combine_chunks().flatten().to_numpy().reshape(-1, NUMBERS)
        for rows, _ in zip(
            torch.from_numpy(vectors).split(WIDE_BATCH),  # type: ignore[no-untyped-call]
            torch.from_numpy(group["label"].to_numpy()).split(WIDE_BATCH),  # type: ignore[no-untyped-call]
            strict=True,
        ):
            yield rows


def text_in_order(path: Path) -> Iterator[torch.Tensor]:
    tokens = np.memmap(path, np.uint8, "r").reshape(-1, LENGTH)
    for start in range(0, len(tokens), TEXT_BATCH):
        yield torch.from_numpy(tokens[start : start + TEXT_BATCH].astype(np.int64))


def write_archive(path: Path) -> None:
    """Write an archive of pictures that are like photographs: colours that change slowly, and some noise."""
    draw = np.random.default_rng(0)
    with tarfile.open(path, "w") as file:
        for number in range(PICTURES):
            coarse = Image.fromarray(draw.integers(0, 256, (6, 8, 3), dtype=np.uint8))
            smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.int16)
            noisy = (smooth + draw.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
            with io.BytesIO() as made:
                Image.fromarray(noisy).save(made, "JPEG", quality=95)
                content = made.getvalue()
            for ending, each in (("jpg", content), ("cls", f"{number % 4}".encode())):
                member = tarfile.TarInfo(f"{number:06}.{ending}")
                member.size = len(each)
                file.addfile(member, io.BytesIO(each))


def archive_in_order(path: Path) -> Iterator[torch.Tensor]:
    pictures: list[np.ndarray] = []
    labels: list[int] = []
    with tarfile.open(path, "r:") as file:
        for member in file:
            content = file.extractfile(member)
            assert content is not None
            if member.name.endswith(".cls"):
                labels.append(int(content.read()))
                continue
            with Image.open(io.BytesIO(content.read())) as picture:
                pictures.append(np.asarray(picture.convert("RGB")))
            if len(pictures) == PICTURE_BATCH:
                planes = np.ascontiguousarray(np.stack(pictures).transpose(0, 3, 1, 2))
                yield torch.from_numpy(
                    planes.astype(np.float32) / np.float32(255)
                )  # divided by NumPy, on one thread: torch would use several
                pictures, labels = [], []
