"""Writes shapes.parquet, which is made up, next to itself: python recipes/data/make_shapes.py [FOLDER]

Needs Pillow, NumPy and pyarrow.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import parquet

NUM_PICTURES, SIDE = 640, 32
KINDS = ("disc", "square", "cross")


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def inside(kind: str, down: np.ndarray, across: np.ndarray, radius: float) -> np.ndarray:
    """Where a shape around 0 is."""
    if kind == "disc":
        return np.hypot(down, across) < radius
    square = np.maximum(np.abs(down), np.abs(across)) < 0.85 * radius
    return square if kind == "square" else square & (np.minimum(np.abs(down), np.abs(across)) < 0.3 * radius)


def one(draws: np.random.Generator) -> dict[str, object]:
    """A shape of each of one to three kinds on a background that slopes, with noise; its mask, and the box of the
    largest."""
    down, across = np.mgrid[:SIDE, :SIDE] + 0.5
    slope = draws.uniform(-1, 1, 2)
    grey = 90 + 1.2 * (slope[0] * (down - SIDE / 2) + slope[1] * (across - SIDE / 2))
    mask = np.zeros((SIDE, SIDE), np.uint8)
    sizes: list[tuple[int, int]] = []
    for number in draws.permutation(len(KINDS))[: int(draws.integers(1, 4))].tolist():
        radius = draws.uniform(4, 8)
        middle = draws.uniform(radius, SIDE - radius, 2)
        there = inside(KINDS[number], down - middle[0], across - middle[1], radius)
        grey = np.where(there, draws.uniform(130, 200), grey)
        mask[there] = number + 1
    for number in range(1, len(KINDS) + 1):
        sizes.append((int((mask == number).sum()), number))
    largest = max(sizes)[1]
    rows, columns = np.nonzero(mask == largest)
    left, top = int(columns.min()), int(rows.min())
    noisy = np.clip(grey + draws.normal(0, 14, grey.shape), 0, 255)
    return {
        "picture": png((noisy // 8 * 8).astype(np.uint8)),
        "mask": png(mask),
        "box": [[left, top, int(columns.max()) + 1 - left, int(rows.max()) + 1 - top]],
        "kind": [KINDS[largest - 1]],
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    generator = np.random.default_rng(5)
    table = pa.Table.from_pylist([one(generator) for _ in range(NUM_PICTURES)])
    parquet.write_table(table, folder / "shapes.parquet", compression="none", row_group_size=160)
