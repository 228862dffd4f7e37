"""The model of a plan as a table: node after node, what it gives, and how many parameters it holds."""

from __future__ import annotations

from itertools import groupby

from declarative_train.components.datasets.files import shown
from declarative_train.graph.cost import num_parameters
from declarative_train.graph.graph import Node
from declarative_train.graph.stage_graphs import open_blocks
from declarative_train.plan.plan import Plan
from declarative_train.plan.text.tables import columns
from declarative_train.terms.amounts import amount, counted


def describe_model(plan: Plan) -> list[str]:
    shapes = {item.name: item.shape for item in plan.parameters if item.tie is None}
    opened = open_blocks(plan.graph, plan.layout.units)
    rows = [["node", "what", "gives", "parameters"]]
    rows += [[node.name, f"{_what(node)} (batch)", _gives(node), ""] for node in plan.batch_graph.nodes]
    for _, group in groupby(opened.nodes, key=_same_copy):
        nodes = list(group)
        count = sum(num_parameters(node.name, shapes) for node in nodes)
        rows.append([_names(nodes), _what(nodes[0]), _gives(nodes[-1]), f"{count:,}" if count else ""])
    return [*columns(rows), *_totals(plan)]


def _same_copy(node: Node) -> tuple[object, ...]:
    """Copies of a repeat that look alike are one row."""
    parts = node.name.split(".")
    if not parts[-1].isdigit():
        return (node.name,)
    return (tuple(parts[:-1]), _what(node), _gives(node))


def _names(nodes: list[Node]) -> str:
    if len(nodes) == 1:
        return nodes[0].name
    base = nodes[0].name.rpartition(".")[0]
    return f"{base}.{nodes[0].name.rpartition('.')[2]}..{nodes[-1].name.rpartition('.')[2]}"


def _what(node: Node) -> str:
    if node.kind == "expression":
        text = str(node.expression)
        return text if len(text) <= 40 else f"{text[:37]}..."
    if node.kind == "block":
        return str(node.block)
    if node.kind == "reuse":
        return f"{node.target} again"
    return str((node.component or {})["type"])


def _gives(node: Node) -> str:
    specs = list(node.outputs.items())
    shown = [f"{spec}" if len(specs) == 1 else f"{name} {spec}" for name, spec in specs[:3]]
    return ", ".join(shown) + (", ..." if len(specs) > 3 else "")


def _totals(plan: Plan) -> list[str]:
    own = [item for item in plan.parameters if item.tie is None]
    total = sum(item.num_elements for item in own)
    frozen = sum(item.num_elements for item in own if item.frozen)
    lines = [f"{counted(total, 'parameter')} ({amount(total)}) in {counted(len(own), 'tensor')}"]
    if frozen:
        lines[0] += f", {frozen:,} of them frozen"
    lines += [f"{item.name} is tied to {item.tie}" for item in plan.parameters if item.tie is not None]
    given = ((weights.node or "the model", shown(weights.path)) for weights in plan.weights)
    return lines + [f"start values of {held} from {path}" for held, path in given]
