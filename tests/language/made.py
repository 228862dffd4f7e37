"""Small data for the recipes of this folder, written where each looks for them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np


def make(folder: Path) -> None:
    """Everything below `folder/data`."""
    data = folder / "data"
    (data / "corpus").mkdir(parents=True)
    (data / "load").mkdir()
    draw = np.random.default_rng(0)
    for number in range(600):
        _pet(draw, data / "pets" / f"pet_{number % 37:02}" / f"{number:03}.jpg")
    np.savez(data / "digits.npz", x=_digits(draw, 1000))
    for part in range(2):
        (data / "corpus" / f"{part}.txt").write_text(_sentences(draw, 70000))
    np.savez(data / "packed.npz", packed=draw.integers(0, 128256, (300, 65), dtype=np.int64))
    for name, rows in (("train", 1100), ("newstest", 64)):
        german, english = draw.integers(1, 32000, (rows, 96)), draw.integers(1, 32000, (rows, 97))
        german[:, 80:] = english[:, 80:] = 0  # padding
        np.savez(data / f"{name}.npz", de=german, en=english)
    for meter in range(3):
        _meter(draw, data / "load" / f"{meter}.csv", meter)
    _payments(draw, data / "fraud.csv")


def _pet(draw: np.random.Generator, path: Path) -> None:
    """Colours of 12 x 9 fields, as a small photograph."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    colours = draw.integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(colours).resize((96, 72), Image.Resampling.BICUBIC).save(path)


def _digits(draw: np.random.Generator, rows: int) -> np.ndarray:
    """Values 0 to 16 around one of 10 patterns."""
    patterns = draw.integers(0, 17, (10, 64))
    return np.clip(patterns[draw.integers(0, 10, rows)] + draw.integers(-2, 3, (rows, 64)), 0, 16).astype(np.float32)


def _sentences(draw: np.random.Generator, words: int) -> str:
    known = ["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "slept", "until", "dawn"]
    return " ".join(known[each] for each in draw.integers(0, len(known), words))


def _meter(draw: np.random.Generator, path: Path, meter: int) -> None:
    """2,400 hours of a daily wave; written out of order, because `sort` is to mend that."""
    hours = np.arange(2400)
    load = 10 + 3 * np.sin(2 * np.pi * hours / 24 + meter) + 0.2 * draw.normal(size=hours.size)
    temperature = 15 + 5 * np.cos(2 * np.pi * hours / 24)
    rows = [(meter, hour, load[hour], temperature[hour], hour % 24) for hour in draw.permutation(hours)]
    _write(path, ["meter", "time", "load", "temperature", "hour"], rows)


def _payments(draw: np.random.Generator, path: Path) -> None:
    """One in ten is a fraud, and larger; some amounts are missing."""
    fraud = (draw.random(4000) < 0.1).astype(int)
    amount = np.round(50 + 30 * fraud + 20 * draw.normal(size=4000), 2)
    features = draw.normal(size=(4000, 3)) + fraud[:, None] * np.array([1.5, -1.0, 0.0])
    missing = draw.random(4000) < 0.05
    rows = [
        ("" if missing[i] else amount[i], *np.round(features[i], 4), draw.integers(1, 13), fraud[i])
        for i in range(4000)
    ]
    _write(path, ["amount", "v1", "v2", "v3", "month", "is_fraud"], rows)


def _write(path: Path, head: list[str], rows: list[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
