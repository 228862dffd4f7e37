"""Command `dtrain evaluate RUN`: exact metrics of a trained model, its mistakes and its worst samples."""

from __future__ import annotations

import argparse
import json
import sys

from declarative_train.app.numbers import count, positive
from declarative_train.app.printing import print_text
from declarative_train.app.trained import (
    add_compute_arguments,
    add_run_argument,
    check_started_alone,
    open_named_run,
    report_errors,
)

_WORST = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--data", nargs="+", metavar="INPUT", help="new rows with their targets: csv, jsonl, parquet, npy or npz files"
    )
    which.add_argument(
        "--set", dest="set_name", metavar="NAME", help="a set of the run (default: the first that it evaluated)"
    )
    parser.add_argument(
        "--max",
        dest="max_samples",
        type=count,
        metavar="N",
        help="number of samples, spread over the set as with `evaluation.max` (default: all)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--worst", type=count, default=_WORST, metavar="N", help="number of samples to show (default: 5)"
    )
    parser.add_argument(
        "--no-baseline", action="store_true", help="do not fit simple models to the training rows for comparison"
    )
    parser.add_argument("--no-tensorboard", action="store_true", help="write nothing to the run's folder")
    parser.add_argument("--ranks", type=positive, default=1, metavar="N", help="divide the samples over N processes")
    add_compute_arguments(parser)


def run(args: argparse.Namespace) -> int:
    return report_errors(lambda: _evaluate(args))


def _evaluate(args: argparse.Namespace) -> int:
    from declarative_train.app.views.evaluation import evaluation_text
    from declarative_train.app.views.table import terminal_width
    from declarative_train.inference.evaluate import evaluate

    check_started_alone("evaluate")
    trained = open_named_run(args)
    found = evaluate(
        trained,
        set_name=args.set_name,
        data=args.data,
        max_samples=args.max_samples or None,
        num_worst=args.worst,
        batch_size=args.batch_size,
        device=args.device,
        ranks=args.ranks,
        compare=not args.no_baseline,
    )
    if args.json:
        print(json.dumps(found.as_json(), indent=1, ensure_ascii=False))
    else:
        print_text(evaluation_text(found, terminal_width()))
    if args.no_tensorboard:
        return 0
    if trained.run_dir is None:
        print("dtrain: no pictures: the checkpoint is not in the folder of a run here", file=sys.stderr)
        return 0
    from declarative_train.inference.pictures import write_pictures

    print(f"dtrain: numbers and pictures for TensorBoard: {write_pictures(found, trained.run_dir)}", file=sys.stderr)
    return 0
