"""`dtrain show RECIPE`: the resolved recipe, each value with its provenance; `--graph`: the nodes with shapes."""

from __future__ import annotations

import argparse
import json
from itertools import groupby

from declarative_train.api.compiling import Compiled, texts_of
from declarative_train.cli.compile import add_recipe_arguments, compile_recipe, is_missing, load_recipe, report
from declarative_train.cli.views.graph import graph_table
from declarative_train.components.datasets.files import masked
from declarative_train.recipe.recipe import Leaf, Recipe
from declarative_train.source.document import Document


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    parser.add_argument("--graph", action="store_true", help="the nodes of the model with their inputs and outputs")
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, to know their shapes")


def run(args: argparse.Namespace) -> int:
    if is_missing(args.recipe):
        return 2
    if args.graph:
        compiled = compile_recipe(args, plugins=args.plugins)
        report(compiled)
        if compiled.plan is None:
            return 1
        print(graph_table(compiled.plan))
        return 0
    loaded = load_recipe(args, plugins=args.plugins)
    report(Compiled(loaded, None, tuple(loaded.diagnostics), texts_of(loaded)))
    if loaded.recipe is None:
        return 1
    print(resolved(loaded.recipe))
    print(balanced(loaded.recipe), end="")
    print(dropped(loaded.recipe.document), end="")
    return 0


def resolved(recipe: Recipe) -> str:
    """A dotted path, its value and where it was written, one line each; a section is set off by an empty line."""
    leaves = list(recipe.leaves())
    names = [".".join(map(str, leaf.path)) for leaf in leaves]
    width = min(56, max(map(len, names)))
    values = [masked(json.dumps(leaf.value, ensure_ascii=False, default=str)) for leaf in leaves]
    value_width = min(48, max(map(len, values)))
    lines = []
    rows = zip(names, values, leaves, strict=True)
    for _, section in groupby(rows, key=lambda row: row[2].path[0]):
        lines += [f"{name:<{width}}  {value:<{value_width}}  # {origin(leaf)}" for name, value, leaf in section]
        lines.append("")
    return "\n".join(lines)


def origin(leaf: Leaf) -> str:
    if leaf.span is None:
        return "default"
    return leaf.span.path if leaf.span.path.startswith("--") else f"{leaf.span.path}:{leaf.span.line}"


def balanced(recipe: Recipe) -> str:
    """The numbers behind `balanced`: they come from the training rows, which are read for nothing else here."""
    asked = {name: term.component for name, term in recipe.objective.losses.items() if term.component.needs_balance}
    if not asked:
        return ""
    from declarative_train import plan as plan_room

    plan, _ = plan_room.compile(recipe)
    if plan is None:  # what is wrong with the rest is for `lint` to say
        return ""
    lines = []
    for term in plan.objective.terms:
        for key, value in term.component.items():
            if term.name in asked and getattr(asked[term.name], key, None) == "balanced":
                numbers = value if isinstance(value, list | tuple) else [value]
                shown = ", ".join(f"{number:.4g}" for number in numbers)
                lines.append(f"objective.losses.{term.name}.{key}  [{shown}]  # over the training rows")
    return "\n".join(["balanced:", *lines, "", ""])


def dropped(document: Document) -> str:
    """What a later file displaced or removed, by whom."""
    if not document.dropped:
        return ""
    lines = [
        f"{'.'.join(map(str, item.path))}  # {item.span.path}:{item.span.line}, {item.reason} by {item.by}"
        for item in document.dropped
    ]
    return "\n".join(["dropped:", *lines, ""])
