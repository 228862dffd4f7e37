"""Command `dtrain show RECIPE`: show the resolved recipe, each value with its origin. `--graph`: the nodes with shapes.
`--explicit`: a recipe with all defaults. A recipe with mistakes is shown as far as possible."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import groupby

from declarative_train.app.api.compiling import CompileResult, read_recipe, texts_of
from declarative_train.app.compile import add_recipe_arguments, compile_recipe, load_recipe, report, report_missing
from declarative_train.app.printing import print_text
from declarative_train.app.views.graph import HEAD, graph_rows, graph_table
from declarative_train.core.machine import own_version
from declarative_train.core.secrets import masked
from declarative_train.recipe.flat_values import Leaf
from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, Scope
from declarative_train.recipe.model.walk import Frame, all_nodes
from declarative_train.recipe.recipe import Recipe
from declarative_train.source.document import Document
from declarative_train.source.writing import lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--graph", action="store_true", help="show the nodes of the model with inputs, outputs and shapes"
    )
    form.add_argument("--explicit", action="store_true", help="write the recipe as one file with all defaults")
    parser.add_argument("--json", action="store_true", help="print values and origins, or the table of nodes, as JSON")
    parser.add_argument("--plugins", action="store_true", help="import the recipe's plugins, for their shapes")


def run(args: argparse.Namespace) -> int:
    if report_missing(args.recipe):
        return 2
    if args.graph:
        compiled = compile_recipe(args, plugins=args.plugins)
        report(compiled)
        if compiled.plan is None:
            return 1
        rows = [dict(zip(HEAD, row, strict=True)) for row in graph_rows(compiled.plan)]
        print_text(json.dumps(rows, indent=1) if args.json else graph_table(compiled.plan))
        return 0
    loaded = load_recipe(args, plugins=args.plugins)
    report(CompileResult(loaded, None, tuple(loaded.diagnostics), texts_of(loaded)))
    recipe = loaded.recipe
    if args.json:
        shown = recipe or loaded.draft
        values = {} if shown is None else values_data(shown.leaves(), explicit=args.explicit)
        print_text(masked(json.dumps(values, indent=1, default=str)))
        return 0 if recipe is not None else 1
    if recipe is None:
        if args.explicit or loaded.draft is None or not loaded.draft.tree.entries:
            return 1
        print_text(list_values(loaded.draft.leaves()), end="")
    elif args.explicit:
        print(explicit_text(args.recipe, recipe), end="")
        return 0
    else:
        print_text(list_values(recipe.leaves()), end="")
        print_text(list_balanced(recipe), end="")
    if loaded.document is not None:
        print_text(list_dropped(loaded.document), end="")
    return 0 if recipe is not None else 1


def explicit_text(path: str, recipe: Recipe) -> str:
    """Return the recipe with all defaults written out. If lint would warn about this text, for example about a default
    that has no effect, a comment at the top switches these warnings off. Comments at the end list the expressions in
    the shipped blocks that the recipe uses."""
    from declarative_train.recipe.explicit import make_explicit  # only needed here

    head = f"# {path} with all defaults of dtrain {own_version()} written out.\n"
    text = "".join(f"{line}\n" for line in lines(make_explicit(recipe)))
    found = read_recipe(path, texts={path: text}).diagnostics
    if codes := sorted({each.code for each in found if not each.is_error}):
        head += f"# dtrain: ignore-file[{', '.join(codes)}]\n"
    return head + text + "".join(f"# {line}".rstrip() + "\n" for line in formula_lines(recipe.model.scope))


def formula_lines(scope: Scope) -> list[str]:
    """Return lines that show how shipped blocks without layers, such as `dpo`, are computed. Each such block of the
    model has a title with its inputs and params, then a line for each expression in it."""
    from declarative_train.recipe.model.blocks import list_shipped

    shipped, found = frozenset(list_shipped()), dict[str, list[str]]()
    for node in scope.nodes:
        if isinstance(node, BlockNode) and node.block in shipped and (formulas := _formulas(node)):
            given = ", ".join(f"{name}: {value}" for name, value in node.params.items())
            title = f"{node.block}({', '.join(node.scope.inputs)})" + (f" with {given}" if given else "")
            found[title] = ["", f"{title}, in the language:", *(f"  {line}" for line in formulas)]
    return [line for each in found.values() for line in each]


def _formulas(block: BlockNode) -> list[str]:
    """Return a line for each expression in a block, also in blocks inside it. Return [] if the block contains a
    layer."""
    found = []
    for _, node in all_nodes(Frame(block.scope)):
        if isinstance(node, ExpressionNode):
            found.append(f"{node.path.removeprefix(f'{block.path}.')}: {' '.join(node.scalar.text.split())}")
        elif not isinstance(node, BlockNode):
            return []
    return found


def list_values(found: Iterable[Leaf]) -> str:
    """Return a text with a line for each value: dotted path, value, and the place where it is set; an empty line
    follows each section."""
    leaves = list(found)
    names = [".".join(map(str, leaf.path)) for leaf in leaves]
    width = min(56, max(map(len, names), default=0))
    values = [masked(json.dumps(leaf.value, ensure_ascii=False, default=str)) for leaf in leaves]
    value_width = min(48, max(map(len, values), default=0))
    text = ""
    rows = zip(names, values, leaves, strict=True)
    for _, section in groupby(rows, key=lambda row: row[2].path[0]):
        for name, value, leaf in section:
            text += f"{name:<{width}}  {value:<{value_width}}  # {origin(leaf)}\n"
        text += "\n"
    return text


def values_data(found: Iterable[Leaf], *, explicit: bool) -> dict[str, object]:
    """Return {dotted path: {"value": value, "origin": where it is set}} or, if `explicit`, {dotted path: value}."""
    leaves = {".".join(map(str, leaf.path)): leaf for leaf in found}
    if explicit:
        return {name: leaf.value for name, leaf in leaves.items()}
    return {name: {"value": leaf.value, "origin": origin(leaf)} for name, leaf in leaves.items()}


def origin(leaf: Leaf) -> str:
    if leaf.span is None:
        return "default"
    return leaf.span.path if leaf.span.path.startswith("--") else f"{leaf.span.path}:{leaf.span.line}"


def list_balanced(recipe: Recipe) -> str:
    """Return a text with the class weights that the value `balanced` means for each loss. Computing them reads the
    training rows."""
    asked = {name: term.component for name, term in recipe.objective.losses.items() if term.component.needs_balance}
    if not asked:
        return ""
    from declarative_train import planner

    plan, _ = planner.compile(recipe)
    if plan is None:  # `lint` reports the errors
        return ""
    lines = []
    for term in plan.objective.terms:
        for key, value in term.component.items():
            if term.name in asked and getattr(asked[term.name], key, None) == "balanced":
                numbers = value if isinstance(value, list | tuple) else [value]
                shown = ", ".join(f"{number:.4g}" for number in numbers)
                lines.append(f"objective.losses.{term.name}.{key}  [{shown}]  # over the training rows")
    return "\n".join(["balanced:", *lines, "", ""])


def list_dropped(document: Document) -> str:
    """Return a text with the values in the recipe's files that a later file or option replaced or removed. Each line
    shows where the value was written, and which file or option replaced it. Return "" if there are none."""
    if not document.dropped:
        return ""
    lines = [
        f"{'.'.join(map(str, item.path))}  # {item.span.path}:{item.span.line}, {item.reason} by {item.by}"
        for item in document.dropped
    ]
    return "\n".join(["dropped:", *lines, ""])
