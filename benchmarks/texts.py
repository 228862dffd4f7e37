"""Tokens per second: windows and packed samples of a recipe compared with a plain loop over a memory map. Rounds are
interleaved.

    python -m benchmarks.texts [--rounds 5] [--write]

The tokens (64 Mi, of a vocabulary of 32,768) are not loaded into memory. All sides make int64 tensors of 32 x 1,024, on
one thread, in the same shuffled order. The loop for windows cuts inputs and targets as one slice each. The loop for
packed samples copies text after text, and makes the same tensors as the recipe.
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

from benchmarks.report import write_table
from declarative_train.components.data import Column, Table
from declarative_train.components.fields.tensor import TensorField
from declarative_train.data.field_reader import FieldReader, make_reader
from declarative_train.data.order import sample_index
from declarative_train.data.prepared_set import prepare
from declarative_train.data.rows import RowOrder, RowRange, make_windows
from declarative_train.data.spec import WindowSpec
from declarative_train.data.tensor_sets import ReadSet
from declarative_train.packs.text.cache import Tokens
from declarative_train.packs.text.packing import Packing
from declarative_train.packs.text.token_stream import stack_runs
from declarative_train.packs.text.token_tables import PackedRows, column_of
from declarative_train.packs.text.tokens import TokensField

TOKENS, VOCABULARY, LENGTH, BATCH, BATCHES = 64 << 20, 1 << 15, 1024, 32, 40
OUTPUTS = {
    "tokens alone": ("ids",),
    "with segments, positions and a loss mask": ("ids", "segments", "positions", "trained"),
}
Gather = Callable[[np.ndarray], object]
Way = tuple[int, Gather]


class Mapped(Table):
    """Table with one column of tokens, which are in a flat file."""

    def __init__(self, tokens: np.ndarray) -> None:
        self._tokens = tokens
        self.num_rows = len(tokens)
        self.columns = {"tokens": Column("tokens", str(tokens.dtype), (), VOCABULARY)}

    def read(self, columns: object, rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {"tokens": self._tokens[rows]}

    def read_runs(self, columns: object, starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
        return {"tokens": stack_runs(self._tokens, starts, length)}


def windows(tokens: np.ndarray) -> tuple[int, Gather]:
    table, window = Mapped(tokens), WindowSpec(LENGTH + 1, LENGTH)
    fields = {"past": TensorField(column="tokens", rows=":-1"), "next": TensorField(column="tokens", rows="1:")}
    parts = tuple(make_reader(name, each, (table.columns["tokens"],), {}, window) for name, each in fields.items())
    rows, made = make_windows(RowRange(0, table.num_rows), window, RowOrder(None, None))
    return len(made), ReadSet(prepare("training", table, rows, made, parts, hold_bytes=0)).gather


def packed(tokens: np.ndarray, mean: int, outputs: tuple[str, ...]) -> tuple[int, Gather, Packing, np.ndarray]:
    """Pack texts of `mean` tokens on average into samples. Return the number of samples, a function that gathers
    samples, the packing, and the token at which each packed text begins."""
    sizes = np.random.default_rng(0).lognormal(np.log(mean) - 0.4, 0.9, TOKENS // mean).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    starts = starts[starts <= TOKENS]
    field = TokensField(column="text", tokenizer="bytes", length=LENGTH, pack="best_fit")
    text = Column("text", "object")
    part = FieldReader("text", field, (text,), {}, field.row_spec([text], {}), field.row_spec([text], {}))
    table = PackedRows(Mapped(tokens), {"text": (part, Tokens(tokens, starts, None))}, np.arange(len(starts) - 1))
    fields = {name: field.output_of(name) for name in outputs}
    parts = tuple(
        make_reader(f"text.{name}", each, (column_of("text", each),), {}, None) for name, each in fields.items()
    )
    made = ReadSet(prepare("training", table, RowRange(0, table.num_rows), None, parts, hold_bytes=0))
    begins = starts[table.packing.texts] + table.packing.offsets
    return table.num_rows, made.gather, table.packing, begins


def packed_by_hand(tokens: np.ndarray, packing: Packing, begins: np.ndarray, outputs: tuple[str, ...]) -> Gather:
    """Return a function that gathers the same samples as `packed`, by a loop over their texts."""

    def gather(samples: np.ndarray) -> object:
        size = len(samples), LENGTH
        ids = np.zeros(size, np.int64)
        segments, positions, trained = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros(size, bool)
        for row, sample in enumerate(samples.tolist()):
            place = 0
            for number, piece in enumerate(range(int(packing.begins[sample]), int(packing.begins[sample + 1]))):
                begin, end = int(begins[piece]), place + int(packing.lengths[piece])
                ids[row, place:end] = tokens[begin : begin + end - place]
                if len(outputs) > 1:
                    segments[row, place:end] = number + 1
                    positions[row, place:end] = np.arange(end - place)
                    trained[row, place + 1 : end] = True
                place = end
        made = (ids, segments, positions, trained)[: len(outputs)]
        return [torch.from_numpy(each) for each in made]

    return gather


def by_hand(tokens: np.ndarray) -> tuple[int, Gather]:
    def gather(samples: np.ndarray) -> object:
        rows = np.stack([tokens[start : start + LENGTH + 1] for start in (samples * LENGTH).tolist()])
        found = torch.from_numpy(rows.astype(np.int64))
        return found[:, :-1].contiguous(), found[:, 1:].contiguous()

    return (len(tokens) - 1) // LENGTH, gather


def rate(way: Way, epoch: int) -> float:
    """Return the number of tokens per second."""
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
    lines = [
        "| samples | ours, million tokens/s | ours / plain windows | ours / the same samples by hand |",
        "|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "tokens"
        np.random.default_rng(0).integers(0, VOCABULARY, TOKENS, np.uint16).tofile(path)
        tokens = np.memmap(path, np.uint16, "r")
        plain = by_hand(tokens)
        rows: list[tuple[str, Way, Way]] = [("windows", windows(tokens), plain)]
        for mean in (600, 120):
            for title, outputs in OUTPUTS.items():
                size, gather, packing, begins = packed(tokens, mean, outputs)
                other = size, packed_by_hand(tokens, packing, begins, outputs)
                rows.append((f"packed texts of {mean} tokens, {title}", (size, gather), other))
        for title, *ways in rows:
            rounds = [[rate(way, epoch) for way in (ways[0], plain, ways[1])] for epoch in range(args.rounds)]
            mine = median(each[0] for each in rounds) / 1e6
            ratios = [median(each[0] / each[other] for each in rounds) for other in (1, 2)]
            lines.append(f"| {title} | {mine:,.0f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
            print(lines[-1], flush=True)
    if args.write:
        write_table("texts", "\n".join(lines))


if __name__ == "__main__":
    main()
