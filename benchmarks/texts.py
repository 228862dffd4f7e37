"""Tokens a second: a recipe's windows and packed samples beside a plain loop over a memory map, interleaved.

    python -m benchmarks.texts [--rounds 5] [--write]

The tokens (64 Mi, of a vocabulary of 32,768) are not held in memory; both give int64 inputs and targets of 32 x 1,024,
on one thread, in the same shuffled order.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.__main__ import REPORT
from declarative_train.components.data import Column, Table
from declarative_train.components.datasets.token_stream import stacked
from declarative_train.components.fields.tensor import TensorField
from declarative_train.components.fields.tokens import TokensField
from declarative_train.components.texts import layout
from declarative_train.components.texts.cache import Tokens
from declarative_train.data.order import sample_index
from declarative_train.data.parts import Part, make_part
from declarative_train.data.prepare import prepare
from declarative_train.data.rows import RowRange
from declarative_train.data.sets import ReadSet
from declarative_train.data.spec import WindowSpec
from declarative_train.data.texts import PackedRows
from declarative_train.data.windows import RowOrder, windowed

BEGIN, END = "<!-- begin: texts -->", "<!-- end: texts -->"
TOKENS, VOCABULARY, LENGTH, BATCH, BATCHES = 64 << 20, 1 << 15, 1024, 32, 40
Gather = Callable[[np.ndarray], object]


class Mapped(Table):
    """One column of tokens of a flat file."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._tokens = tokens
        self.num_rows = len(tokens)
        self.columns = {"tokens": Column("tokens", str(tokens.dtype), (), VOCABULARY)}

    def read(self, columns: object, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {"tokens": self._tokens[rows]}

    def read_runs(self, columns: object, starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
        return {"tokens": stacked(self._tokens, starts, length)}


def windows(tokens: np.ndarray) -> tuple[int, Gather]:
    table, window = Mapped(tokens), WindowSpec(LENGTH + 1, LENGTH)
    fields = {"past": TensorField(column="tokens", rows=":-1"), "next": TensorField(column="tokens", rows="1:")}
    parts = tuple(make_part(name, each, (table.columns["tokens"],), {}, window) for name, each in fields.items())
    rows, made = windowed(RowRange(0, table.num_rows), window, RowOrder(None, None))
    return len(made), ReadSet(prepare("training", table, rows, made, parts, hold_bytes=0)).gather


def packed(tokens: np.ndarray, outputs: tuple[str, ...]) -> tuple[int, Gather]:
    """Texts of 600 tokens on average."""
    sizes = np.random.default_rng(0).lognormal(6, 0.9, TOKENS // 600).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    starts = starts[starts <= TOKENS]
    field = TokensField(column="text", tokenizer="bytes", length=LENGTH, pack="best_fit")
    text = Column("text", "object")
    table = PackedRows(
        Mapped(tokens),
        "text",
        Part("text", field, (text,), {}, field.row_spec([text], {}), field.row_spec([text], {})),
        Tokens(tokens, starts, None),
        np.arange(len(starts) - 1),
    )
    column = Column("tokens of text", "int32", (layout.LAYERS, LENGTH))
    parts = tuple(make_part(f"text.{name}", field.output_of(name), (column,), {}, None) for name in outputs)
    return table.num_rows, ReadSet(
        prepare("training", table, RowRange(0, table.num_rows), None, parts, hold_bytes=0)
    ).gather


def by_hand(tokens: np.ndarray) -> tuple[int, Gather]:
    def gather(samples: np.ndarray) -> object:
        rows = np.stack([tokens[start : start + LENGTH + 1] for start in (samples * LENGTH).tolist()])
        found = torch.from_numpy(rows.astype(np.int64))
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()

    return (len(tokens) - 1) // LENGTH, gather


def rate(way: tuple[int, Gather], epoch: int) -> float:
    """Tokens a second."""
    size, gather = way
    order = sample_index(0, epoch, np.arange(BATCH * (BATCHES + 2)), size)
    batches = order.reshape(-1, BATCH)
    for each in batches[:2]:
        gather(each)
    start = time.perf_counter()
    for each in batches[2:]:
        gather(each)
    return BATCHES * BATCH * LENGTH / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.texts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| samples | ours, million tokens/s | by hand, million tokens/s | ours / by hand |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokens"
        np.random.default_rng(0).integers(0, VOCABULARY, TOKENS, np.uint16).tofile(path)
        tokens = np.memmap(path, np.uint16, "r")
        other = by_hand(tokens)
        ways = {
            "windows": windows(tokens),
            "packed, tokens alone": packed(tokens, ("ids",)),
            "packed, with segments, positions and what is trained": packed(
                tokens, ("ids", "segments", "positions", "trained")
            ),
        }
        for title, way in ways.items():
            pairs = [(rate(way, epoch), rate(other, epoch)) for epoch in range(args.rounds)]
            mine, theirs = (median(each) / 1e6 for each in zip(*pairs, strict=True))
            ratio = median(one / two for one, two in pairs)
            lines.append(f"| {title} | {mine:,.0f} | {theirs:,.0f} | {ratio:.2f} |")
            print(lines[-1], flush=True)
    if args.write:
        text = REPORT.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        assert after, f"{REPORT} has no place for it"
        table = "\n".join(lines)
        REPORT.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
