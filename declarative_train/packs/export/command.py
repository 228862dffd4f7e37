"""Command `dtrain export RUN --to FORMAT`: write a trained model as files that other tools load."""

from __future__ import annotations

import argparse

from declarative_train.app.printing import print_text
from declarative_train.app.trained import add_output_argument, add_run_argument, open_named_run, report_errors
from declarative_train.packs.export.names import DTYPES, NAMES, PUBLISHED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_argument(parser)
    parser.add_argument("--to", choices=NAMES, required=True, help="format")
    parser.add_argument(
        "-o", "--out", metavar="FOLDER", help="folder to write (default: export-FORMAT in the run's folder)"
    )
    add_output_argument(parser)
    parser.add_argument(
        "--inputs",
        choices=("raw", "prepared"),
        default="raw",
        help="raw (default): values of the columns, which the model prepares; prepared: fields as in training",
    )
    parser.add_argument("--dtype", choices=DTYPES, help="dtype of weights and computation (default: that of training)")


def run(args: argparse.Namespace) -> int:
    return report_errors(lambda: _export(args))


def _export(args: argparse.Namespace) -> int:
    from declarative_train.packs.export.export import export

    made = export(open_named_run(args), args.to, args.out, outputs=args.output, numbers=args.inputs, dtype=args.dtype)
    print_text(f"{made.folder}: {', '.join(made.files)}")
    if args.to in PUBLISHED:
        print_text(f"`{made.inputs[0]}`, a model of {PUBLISHED[args.to]}")
    else:
        print_text(f"from {', '.join(made.inputs)} to {', '.join(made.outputs)}")
    print_text(
        f"loaded back: the same to {made.max_relative_error:.1g}"
        if made.max_relative_error
        else "loaded back: the same"
    )
    return 0
