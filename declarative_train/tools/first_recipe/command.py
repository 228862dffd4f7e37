"""Command `dtrain init`: write a first recipe that runs, for synthetic data or for a table of the user."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.printing import print_text

if TYPE_CHECKING:
    from declarative_train.tools.first_recipe.pictures import PictureRecipe
    from declarative_train.tools.first_recipe.text import FirstRecipe

SCHEMA = "recipe.schema.json"
TASKS = ("classes", "numbers")
FIRST_RECIPE = """\
# yaml-language-server: $schema={schema}
# A first recipe: 2,000 synthetic rows of 20 numbers in 4 classes, and a small network.
#   dtrain lint {path}     find mistakes, before anything starts
#   dtrain plan {path}     show the plan
#   dtrain run  {path}     train
#   {watch}watch
name: {name}
seed: 0

data:
  source: {{type: synthetic, kind: classification, rows: 2000, features: 20, classes: 4}}
  fields:
    x: {{column: x}}
    y: {{column: y}}
  split: {{validation: 0.2}}

model:
  graph:
    hidden: {{type: linear, out_features: 64, input: x}}
    act:    {{type: relu}}
    logits: {{type: linear, out_features: 4}}

objective:
  loss: {{type: cross_entropy, input: logits, target: y}}
  metrics: [accuracy]

training:
  epochs: 5
  global_batch_size: 100
  optimizer: {{type: adam, lr: 1e-3}}
evaluation: {{every: 1 epoch}}

parallelism: single        # or: dp, ddp, fsdp, pipeline, auto
layout: {{gpus: 1}}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", help="the file to write (default: recipe.yaml, or by the name of --from)")
    parser.add_argument("-o", "--output", metavar="PATH", help="the same as PATH")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="DATA",
        help="table to make the recipe for (.csv, .tsv, .parquet, .feather, .jsonl, .db, .sqlite), also one with the "
        "file names of pictures; or a folder of pictures with a folder for each class",
    )
    parser.add_argument("--table", metavar="NAME", help="with --from: table or view of an SQLite file")
    parser.add_argument("--target", metavar="COLUMN", help="with --from: column to predict")
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="with --from: show what a constant, a linear model and gradient boosting reach (needs scikit-learn)",
    )
    parser.add_argument("--task", choices=TASKS, help="with --from: kind of the target, if the guess is wrong")


def run(args: argparse.Namespace) -> int:
    data = args.path if args.path is not None and not args.path.endswith((".yaml", ".yml")) else None
    if data is not None and args.from_ is None and os.path.exists(data) and args.target is None:
        return _refuse(f"{data} is not a recipe", f"`dtrain init --from {data} --target COLUMN` makes one for it", 2)
    if args.from_ is None and (args.baseline or not args.target is args.task is args.table is None):
        data = data or "DATA"
        options = "--target, --task, --table and --baseline"
        print(f"dtrain: {options} need data: give them with --from {data}", file=sys.stderr)
        return 2
    if args.path is not None and args.output is not None:
        print(f"dtrain: two output files: {args.path} and {args.output}", file=sys.stderr)
        return 2
    named = args.output or args.path
    stem = "recipe" if args.from_ is None else Path(args.from_.rstrip("/")).name.partition(".")[0] or "recipe"
    path = Path(named or f"{stem}.yaml")
    made = None if args.from_ is None else recipe_of_table(args, path)
    if isinstance(made, int):
        return made
    if path.exists() and not args.force:  # checked last: a column that the table lacks must be corrected first
        print(f"dtrain: {path} exists already; give another file, or --force", file=sys.stderr)
        return 2
    for note in () if made is None else made.notes:
        print_text(note)
    code = write(path, first_recipe(path) if made is None else made.text())
    return code if code or not args.baseline else show_baselines(path)


def show_baselines(path: Path) -> int:
    from declarative_train.app.api.errors import DtrainError
    from declarative_train.app.api.recipe import load
    from declarative_train.packs.tables.baselines import compare_set

    try:
        found = compare_set(load(path).plan().plan, "validation")
    except DtrainError as error:
        return _refuse(str(error), None, error.exit_code)
    if found is not None:
        print_text(f"validation {found.line()}" + (f"\nnote: {found.note}" if found.note else ""))
    return 0


def first_recipe(path: Path) -> str:
    watch = f"{'dtrain tensorboard':<{len(str(path)) + 17}}"
    return FIRST_RECIPE.format(schema=SCHEMA, path=path, name=name_of(path.stem), watch=watch)


def name_of(stem: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in stem.lower()).strip("_") or "recipe"


def recipe_of_table(args: argparse.Namespace, path: Path) -> FirstRecipe | PictureRecipe | int:
    """Return the contents of a recipe for the user's table. If no recipe can be made, print the reason and return an
    exit code."""
    from declarative_train.files.paths import SourceError
    from declarative_train.tools.first_recipe.make import make
    from declarative_train.tools.first_recipe.opening import UnusableError, columns_in_words
    from declarative_train.tools.first_recipe.pictures import make_of_folder

    try:
        if os.path.isdir(args.from_):
            return make_of_folder(args.from_, args.target, path, name_of(path.stem), SCHEMA)
        if args.target is None:
            raise UnusableError(
                "give the column to predict: --target COLUMN",
                columns_in_words(args.from_, args.table),
                is_word=True,
            )
        return make(args.from_, args.target, path, name_of(path.stem), SCHEMA, args.task, args.table)
    except SourceError as error:
        return _refuse(str(error), error.help, 2 if error.problem in ("not_found", "no_match") else 1)
    except UnusableError as error:
        return _refuse(str(error), error.help, 2 if error.is_word else 1)


def _refuse(message: str, hint: str | None, code: int) -> int:
    print(f"dtrain: {message}", file=sys.stderr)
    if hint:
        print(f"help: {hint}", file=sys.stderr)
    return code


def write(path: Path, text: str) -> int:
    from declarative_train.recipe.schema import schema_text

    schema = path.parent / SCHEMA
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        schema.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        print(f"dtrain: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 3
    print_text(f"wrote {path} and {schema} (completion and checks in editors with a YAML language server)")
    print_text(f"next: dtrain run {path}")
    return 0
