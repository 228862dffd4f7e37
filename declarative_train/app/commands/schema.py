"""Command `dtrain schema`: write the JSON schema of recipes, for editors."""

from __future__ import annotations

import argparse
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="FILE", help="file to write (default: the screen)")


def run(args: argparse.Namespace) -> int:
    from declarative_train.recipe.schema import schema_text

    text = schema_text()
    if args.output is None:
        sys.stdout.write(text)
        return 0
    try:
        with open(args.output, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        print(f"dtrain: cannot write {args.output}: {error.strerror}", file=sys.stderr)
        return 3
    return 0
