"""Data of the suite: small files that its recipes read, always the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

NUM_ROWS = 400
_GOOD, _BAD = ("fine", "tasty", "warm", "quick", "clean"), ("cold", "rude", "stale", "slow", "dirty")


def write_data(folder: Path) -> None:
    """Write all files into a folder."""
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(NUM_ROWS, 3))
    score = numbers @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=NUM_ROWS)
    days = np.datetime64("2024-01-01") + np.arange(NUM_ROWS)
    level = np.cumsum(rng.normal(size=NUM_ROWS))
    columns = {
        "a": numbers[:, 0], "b": numbers[:, 1], "c": numbers[:, 2],
        "city": rng.choice(["bern", "graz", "oslo", "riga"], NUM_ROWS),
        "customer": [f"c{number:05}" for number in rng.permutation(NUM_ROWS)],
        "price": 50 + 10 * score, "score": score,
        "yes": (score > 0.5).astype(int), "kind": np.digitize(score, [-1.5, 0, 1.5]),
    }  # fmt: skip
    _write_table(folder / "table.csv", columns)
    order = np.argsort(columns["kind"], kind="stable")
    _write_table(folder / "sorted.csv", {name: np.asarray(values)[order] for name, values in columns.items()})
    twice = rng.permutation(np.repeat(np.arange(NUM_ROWS // 2), 2))
    _write_table(folder / "twice.csv", {name: np.asarray(values)[twice] for name, values in columns.items()})
    part = rng.permutation(NUM_ROWS)[:80]
    _write_table(folder / "copy.csv", {name: np.asarray(values)[part] for name, values in columns.items()})
    (folder / "copied.csv").write_bytes((folder / "table.csv").read_bytes())
    _write_table(folder / "days.csv", {"day": days, "yesterday": np.roll(level, 1), "level": level, **columns})
    kinds = columns["kind"].copy()
    kinds[:120] = rng.permutation(kinds[:120])
    _write_table(folder / "noisy.csv", columns | {"kind": kinds})
    marked = np.where(np.arange(NUM_ROWS) % 25 == 3, -999.0, columns["a"])
    _write_table(folder / "marked.csv", columns | {"a": marked, "score": np.full(NUM_ROWS, 2.5)})
    rare = {"sold": (score > 2.5).astype(int), "band": np.digitize(score, [0.5, 2, 3.5])}
    open_ = {"answered": np.where(np.arange(NUM_ROWS) % 6 == 1, "", [f"{each:.4f}" for each in score])}
    tags = {f"tag{number}": (rng.random(NUM_ROWS) < 0.4).astype(int) for number in range(4)}
    _write_table(folder / "answers.csv", {**columns, **rare, **open_, **tags})
    newest = {"day": days[::-1], "level": level[::-1]}
    _write_table(folder / "newest.csv", {**newest, **columns})
    by_price = np.argsort(score)
    _write_table(folder / "by_price.csv", {name: np.asarray(values)[by_price] for name, values in columns.items()})
    _write_table(folder / "numbered.csv", {"id": np.arange(NUM_ROWS), **columns})
    _write_table(folder / "other_units.csv", {"euros": 3 * score + 7, "metres": 1e5 * numbers[:, 1], **columns})
    written = [f"{str(day)[8:]}/{str(day)[5:7]}/{str(day)[:4]}" for day in days]
    hours = {"hour": np.arange(NUM_ROWS) // 2, "written": written, "level": level}
    _write_table(folder / "meters.csv", hours | columns)
    _write_texts(folder, rng)
    _write_pictures(folder, rng)


def _write_table(path: Path, columns: dict[str, object]) -> None:
    cells = zip(*(_format(np.asarray(values)) for values in columns.values()), strict=True)
    path.write_text("\n".join([",".join(columns), *map(",".join, cells)]) + "\n", "utf-8")


def _format(values: np.ndarray) -> list[str]:
    return [f"{value:.4f}" if isinstance(value, float) else str(value) for value in values.tolist()]


def _write_texts(folder: Path, rng: np.random.Generator) -> None:
    rows, chats = [], []
    for number in range(300):
        is_good = bool(rng.integers(2))
        words = rng.choice(_GOOD if is_good else _BAD, rng.integers(1, 6)).tolist()
        rows.append(f"{' '.join(words)} {number},{'good' if is_good else 'bad'},{4 * is_good + 1}")
        asked = {"role": "user", "content": " ".join(rng.choice(_GOOD + _BAD, 3).tolist()) + f" {number}?"}
        chats.append({"messages": [asked, {"role": "assistant", "content": " ".join(words) + "."}]})
    (folder / "notes.csv").write_text("\n".join(["note,verdict,stars", *rows]) + "\n", "utf-8")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    for name, more in (("chats", {}), ("tools", {"tools": tools})):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(each | more) + "\n" for each in chats), "utf-8")


def _write_pictures(folder: Path, rng: np.random.Generator) -> None:
    places = rng.integers(2, 14, size=(200, 2))
    pictures = rng.integers(0, 60, size=(200, 16, 16, 1)).astype(np.uint8)
    for picture, (x, y) in zip(pictures, places, strict=True):
        picture[y - 2 : y + 2, x - 2 : x + 2] = 230
    kind = (places[:, 0] > 7).astype(np.int64)
    np.savez(folder / "pictures.npz", picture=pictures, points=places.astype(np.float32) / 16, kind=kind)
