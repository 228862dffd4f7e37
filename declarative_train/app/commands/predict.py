"""Command `dtrain predict RUN INPUT...`: apply a trained model to new rows."""

from __future__ import annotations

import argparse
import sys

from declarative_train.app.numbers import positive
from declarative_train.app.trained import (
    add_compute_arguments,
    add_output_argument,
    add_run_argument,
    check_started_alone,
    open_named_run,
    report_errors,
)
from declarative_train.core.amounts import format_count

_SHOWN = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument(
        "input",
        nargs="+",
        metavar="INPUT",
        help="csv, jsonl, parquet, npy, npz, SQLite or picture files, a folder of pictures, or - for a csv on stdin",
    )
    parser.add_argument(
        "-o", "--out", default="-", metavar="OUT", help="a .csv, .parquet or .jsonl file (default: csv on stdout)"
    )
    add_output_argument(parser)
    parser.add_argument(
        "--keep", action="append", default=[], metavar="COLUMN", help="repeat this column of the input; * for all"
    )
    parser.add_argument("--ranks", type=positive, default=1, metavar="N", help="divide the rows over N processes")
    add_compute_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return report_errors(lambda: _predict(args))


def _predict(args: argparse.Namespace) -> int:
    from declarative_train.inference.predict import Prediction
    from declarative_train.inference.trained import UsageError
    from declarative_train.inference.writing import KINDS, STDOUT, kind_of, write

    check_started_alone("predict")
    kind_of(args.out)
    if (file := next((name for name in args.output if name.rpartition(".")[2] in KINDS), None)) is not None:
        raise UsageError(f"--output names a node of the model, and {file} is a file; help: `-o {file}` writes to it")
    trained = open_named_run(args)
    prediction = Prediction(
        trained, outputs=args.output, batch_size=args.batch_size, device=args.device, ranks=args.ranks
    )
    if prediction.drawing:
        drawn = ", ".join(f"`{name}`" for name in prediction.drawing)
        print(f"dtrain: {drawn} is random: other batches give other values", file=sys.stderr)
    samples = prediction.open_files(args.input, args.keep)
    names: list[str] = []

    def tables() -> object:
        for table in prediction.tables(samples):
            names[:] = table.column_names
            yield table

    count = write(args.out, tables())  # type: ignore[arg-type]
    if args.out != STDOUT:
        more = f", ... ({len(names)} columns)" if len(names) > _SHOWN else ""
        what = ", ".join(names[:_SHOWN])
        word = "row" if trained.plan.data.window is None else "window"
        print(f"dtrain: {args.out}: {format_count(count, word)} of {what}{more}, by {trained.name}", file=sys.stderr)
    return 0
