"""Shuffled reading of a table compared with reading it in order. Rounds are interleaved. Measured are rates, memory,
start times and reads.

    python -m benchmarks.tables [--rounds 5] [--write]

The table is a Parquet file with 2,000,000 rows of 16 float32, in row groups of 50,000 (128 MB); 400,000 rows at a time
are mixed with each other. Reading in order: pyarrow's row groups one after the other, stacked to (rows, 16), cut into
batches. The sets of 10 MB and of 10 GB are the first row groups of the file, and the file named 80 times. Lint is
measured for 10,000 names of one file of 4,096 rows. Wide tables, text and tar archives are in
`benchmarks/rolled_files.py`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import rolled_files
from benchmarks.report import write_table
from declarative_train.components.datasets.parquet import ParquetTable
from declarative_train.data import shared_sets
from declarative_train.data.build_spec import describe
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.spec import BatchSpec, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.devices import keep_freed_memory
from declarative_train.recipe import load

ROWS, COLUMNS, GROUP, BATCH = 2_000_000, 16, 50_000, 256
SHARDS = 10_000
RATES = (
    "| compared with | its rate | ours / its rate, median | of the best rates | by CPU time |\n|---|---|---|---|---|"
)
QUOTIENTS = "| quotient | |\n|---|---|"
TIMES = "| time of | clock, s | CPU, s |\n|---|---|---|"
RECIPE = """
data:
  source: {{type: parquet, path: {path}}}
  fields: {{x: {{columns: "c*"}}}}
  {window}
model: {{graph: {{out: {{type: linear, out_features: 16, input: x}}}}}}
objective: {{loss: {{type: mse, input: out, target: x}}}}
training: {{epochs: 1, global_batch_size: 256, optimizer: {{type: sgd, lr: 0.1}}}}
"""


def write(path: Path, rows: int) -> None:
    draws, writer = np.random.default_rng(0), None
    for _ in range(0, rows, GROUP):
        made = pa.table({f"c{number:02d}": draws.standard_normal(GROUP, np.float32) for number in range(COLUMNS)})
        writer = writer or pq.ParquetWriter(path, made.schema)
        writer.write_table(made, row_group_size=GROUP)
    assert writer is not None
    writer.close()


def data_of(folder: Path, path: object, window: int | None) -> DataSpec:
    recipe = folder / "bench.yaml"
    said = "" if window is None else f"shuffle_window: {window}"
    recipe.write_text(RECIPE.format(path=path, window=said))
    read = load(str(recipe))
    assert read.recipe is not None, read.diagnostics
    data, diagnostics = describe(read.recipe.data, 0, read.recipe.span)
    assert data is not None, diagnostics
    return data


def batches(data: DataSpec, first: int = 1, ranks: int = 1, rank: int = 0) -> Iterator[torch.Tensor]:
    per_epoch = -(-data.sets[0].num_samples // BATCH)
    spec = BatchSpec(BATCH, ranks, 1, BATCH // ranks, 1, per_epoch)
    steps = TrainingBatches(data, spec, rank, open_sets(data)).iterate(first, per_epoch)
    return (step[0].tensors["x"] for step in steps)


def epochs(data: DataSpec, count: int, size: int = BATCH) -> Iterator[Iterator[torch.Tensor]]:
    """Yield `count` consecutive epochs of one run, each as an iterator of batches of `size`."""
    per_epoch = -(-data.sets[0].num_samples // size)
    spec = BatchSpec(size, 1, 1, size, 1, per_epoch)
    steps = TrainingBatches(data, spec, 0, open_sets(data)).iterate(1, count * per_epoch)
    for _ in range(count):
        yield (step[0].tensors["x"] for step in islice(steps, per_epoch))


def in_order(path: Path) -> Iterator[torch.Tensor]:
    file = pq.ParquetFile(path, memory_map=True)
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, use_threads=False)
        rows = np.stack([column.to_numpy() for column in group.columns], 1)
        yield from torch.from_numpy(rows).split(BATCH)  # type: ignore[no-untyped-call]


def in_order_by_hand(path: Path) -> Iterator[torch.Tensor]:
    """Read in order, and do what a training loop needs: check for missing values, number the samples, and copy each
    batch."""
    file, first = pq.ParquetFile(path, memory_map=True), 0
    for number in range(file.num_row_groups):
        group = file.read_row_group(number, use_threads=False)
        columns = [column.to_numpy() for column in group.columns]
        assert all(np.isfinite(column).all() for column in columns)
        rows, samples = np.stack(columns, 1), np.arange(first, first + group.num_rows)
        first += group.num_rows
        for start in range(0, len(rows), BATCH):
            batch = torch.from_numpy(rows[start : start + BATCH].copy()), samples[start : start + BATCH]
            yield batch[0]


def rate(made: Iterator[torch.Tensor], wanted: int = ROWS) -> np.ndarray:
    """Return the samples per second: by wall-clock time and by CPU time. `wanted`: number of samples that are
    expected."""
    start, used, count = time.perf_counter(), time.process_time(), 0
    for rows in made:
        count += len(rows)
    assert count == wanted
    return np.asarray([count / (time.perf_counter() - start), count / (time.process_time() - used)])


def compare_with_order(case: rolled_files.Case, rounds: int) -> tuple[str, str]:
    """Compare block-shuffled reading of a text or archive with reading in order. Return two texts: the rate in order,
    in values per second, and the cells of `ratios_of`."""
    count = case.data.sets[0].num_samples
    run = epochs(case.data, rounds + 1, case.batch)
    rate(next(run), count)  # a first epoch, because the first use of memory is slow
    found = np.asarray([[rate(next(run), count), rate(case.in_order(), count)] for _ in range(rounds)])
    return f"{np.median(found[:, 1, 0]) * case.values:,.0f}", ratios_of(found[:, 0], found[:, 1])


def ratios_of(mine: np.ndarray, theirs: np.ndarray) -> str:
    """Return three cells of the table, from rates (rounds, 2) of both sides: the median ratio by wall-clock time, the
    ratio of the best rates by wall-clock time, and the median ratio by CPU time."""
    ratios, best = mine / theirs, mine.max(0) / theirs.max(0)
    return " | ".join(f"{each:.2f}" for each in (np.median(ratios[:, 0]), best[0], np.median(ratios[:, 1])))


def first_batch(data: DataSpec, rounds: int, step: int = 1) -> str:
    """Return two cells of the table: the median wall-clock and CPU time to open the sources of a spec and make a
    batch."""
    found = []
    for _ in range(rounds):
        shared_sets._latest.clear()
        start, used = time.perf_counter(), time.process_time()
        made = batches(data, step)
        next(made)
        found.append((time.perf_counter() - start, time.process_time() - used))
        made.close()  # type: ignore[attr-defined]
    clock, processors = np.median(found, 0)
    return f"{clock:.2f} | {processors:.2f}"


def lint_of(folder: Path, path: object) -> float:
    """Return the seconds that `dtrain lint` takes for the files at `path`."""
    data_of(folder, path, None)  # writes the recipe
    start = time.perf_counter()
    command = [sys.executable, "-m", "declarative_train", "lint", str(folder / "bench.yaml")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return time.perf_counter() - start


def lints(folder: Path, rounds: int) -> tuple[float, float]:
    """Return the median seconds of lint for one small file, and for SHARDS such files, whose footers were read before.
    Rounds are interleaved."""
    shards = folder / "shards"
    shards.mkdir()
    one = shards / "00000.parquet"
    pq.write_table(pa.table({f"c{number:02d}": np.ones(4096, np.float32) for number in range(COLUMNS)}), one)
    for number in range(1, SHARDS):
        (shards / f"{number:05}.parquet").hardlink_to(one)
    both = [(lint_of(folder, one), lint_of(folder, shards / "*.parquet")) for _ in range(rounds)]
    return median(each[0] for each in both), median(each[1] for each in both)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth(data: DataSpec) -> tuple[float, int]:
    """Return the ratio of the largest memory in the second epoch of a run to that in the first, and the number of
    shuffle windows that were read."""
    assert data.roll is not None
    per_epoch = -(-ROWS // BATCH)
    spec = BatchSpec(BATCH, 1, 1, BATCH, 1, per_epoch)
    steps = TrainingBatches(data, spec, 0, open_sets(data)).iterate(1, 2 * per_epoch)
    every = [resident() for number, _ in enumerate(steps) if not number % (per_epoch // 40)]
    return max(every[40:]) / max(every[:40]), 2 * ROWS // GROUP // data.roll.window


@contextmanager
def counted() -> Iterator[Counter[int]]:
    read: Counter[int] = Counter()
    whole = ParquetTable._read_group

    def one(table: ParquetTable, path: str, number: int, *rest: object) -> object:
        read[number] += 1
        return whole(table, path, number, *rest)  # type: ignore[arg-type]

    ParquetTable._read_group = one  # type: ignore[method-assign, assignment]
    try:
        yield read
    finally:
        ParquetTable._read_group = whole  # type: ignore[method-assign]


def read_by_ranks(data: DataSpec, ranks: int) -> float:
    """Return the number of row groups that all ranks read in an epoch, divided by the number of row groups in the
    file."""
    with counted() as read:
        for rank in range(ranks):
            for _ in batches(data, 1, ranks, rank):
                pass
    return sum(read.values()) / (ROWS // GROUP)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    keep_freed_memory()  # like a run on the CPU; this changes all measured times
    lines: list[str] = []

    def say(text: str) -> None:
        lines.append(text)
        print(text, flush=True)

    def say_row(*cells: str) -> None:
        say(f"| {' | '.join(cells)} |")

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        large, small = folder / "large.parquet", folder / "small.parquet"
        write(large, ROWS)
        write(small, 3 * GROUP)
        data = data_of(folder, large, 400_000)
        run = epochs(data, args.rounds + 1)
        first = rate(next(run))  # a first epoch, because the first use of memory is slow
        rounds = np.asarray(
            [[rate(next(run)), rate(in_order(large)), rate(in_order_by_hand(large))] for _ in range(args.rounds)]
        )
        with patch.object(shared_sets, "HOLD_BYTES", 0):  # the set is read as if it did not fit into memory
            plain = median(rate(batches(replace(data, shuffle=False, roll=None)))[0] for _ in range(2))
        mine, theirs, same = np.median(rounds[:, :, 0], 0)
        say(RATES)
        say_row("`shuffle: false`", f"{plain:,.0f} rows/s", f"{mine / plain:.2f} | | ")
        for what, place, figure in (("alone", 1, theirs), ("and what a loop needs", 2, same)):
            say_row(f"pyarrow {what}, in order", f"{figure:,.0f} rows/s", ratios_of(rounds[:, 0], rounds[:, place]))
        for made, what, unit in (
            (rolled_files.wide, "pyarrow alone, in order: rows of 512 numbers and a class", "rows/s"),
            (rolled_files.text, "a memory map, in order: text", "tokens/s"),
            (rolled_files.archive, "`tarfile` and Pillow, in order: images of a tar archive", "images/s"),
        ):
            rate_in_order, compared = compare_with_order(made(folder), args.rounds)
            say_row(what, f"{rate_in_order} {unit}", compared)
        say(f"\n{QUOTIENTS}")
        say_row("rate of the first epoch / of later ones", f"{first[0] / mine:.2f}")
        grown, windows = growth(data)
        say_row(f"largest memory of the second epoch / of the first ({windows} windows in both epochs)", f"{grown:.2f}")
        for ranks in (2, 4, 8):
            spec = replace(data, roll=replace(data.roll, streams=8, window=1)) if data.roll else data
            say_row(f"row groups read by {ranks} ranks / row groups of the file", f"{read_by_ranks(spec, ranks):.2f}")
        say(f"\n{TIMES}")
        per_epoch = -(-ROWS // BATCH)
        for step in (10, 1_000_000):
            epoch = (step - 1) // per_epoch + 1
            took = first_batch(data, args.rounds, step)
            say_row(f"first batch of a run that resumes at step {step:,} (epoch {epoch})", took)
        for what, path in (("10 MB, held in memory", small), ("10 GB", [str(large)] * 80)):
            say_row(f"first batch of a set of {what}", first_batch(data_of(folder, path, None), args.rounds))
        one, many = lints(folder, args.rounds)
        say_row("lint of one file", f"{one:.2f}", "")
        say_row(f"lint of {SHARDS:,} files whose footers were read before", f"{many:.2f}", "")
    if args.write:
        write_table("tables", "\n".join(lines))


if __name__ == "__main__":
    main()
