"""`dtrain init`: a first recipe that runs as it is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FIRST_RECIPE = """\
# yaml-language-server: $schema={schema}
# A first recipe: 2,000 made rows of 20 numbers in 4 classes, and a small network.
#   dtrain lint {path}     what is wrong with it, before anything starts
#   dtrain plan {path}     who does what
#   dtrain run  {path}     train
#   dtrain tensorboard           watch
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
    parser.add_argument("path", nargs="?", default="recipe.yaml", help="the file to write (default: recipe.yaml)")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> int:
    from declarative_train.recipe.schema import schema_text

    path = Path(args.path)
    if path.exists() and not args.force:
        print(f"dtrain: {path} is there already; name another file, or say --force", file=sys.stderr)
        return 2
    schema = path.parent / "recipe.schema.json"
    name = "".join(letter if letter.isalnum() else "_" for letter in path.stem.lower()).strip("_") or "recipe"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(FIRST_RECIPE.format(schema=schema.name, path=path, name=name), encoding="utf-8")
        schema.write_text(schema_text(), encoding="utf-8")
    except OSError as error:
        print(f"dtrain: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 3
    print(f"wrote {path} and {schema} (completion and checks in editors with a YAML language server)")
    print(f"next: dtrain run {path}")
    return 0
