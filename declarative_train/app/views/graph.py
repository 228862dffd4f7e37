"""Graph of a plan as a table: nested nodes with inputs, outputs and parameters."""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.app.views.table import table
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.plan import Plan

Row = tuple[str, str, str, str, str]
HEAD = ("node", "type", "in", "out", "parameters")


def graph_table(plan: Plan) -> str:
    """Return the model as a table of nested nodes. Equal copies of a `repeat` are shown once; B in shapes is the batch
    size."""
    total = sum(item.num_elements for item in plan.parameters if item.tie is None)
    return f"{table(HEAD, graph_rows(plan), right=(4,))}\n\n{format_count(total, 'parameter')}"


def graph_rows(plan: Plan) -> list[Row]:
    """Return the rows of the table of the graph: fields, then nodes."""
    counts = {item.name: item.num_elements for item in plan.parameters if item.tie is None}
    rows: list[Row] = [(field.name, "field", "", describe_spec(field.tensor), "") for field in plan.data.fields]
    rows += node_rows(plan.batch_graph, "", counts, 0)
    return [*rows, *node_rows(plan.graph, "", counts, 0)]


def node_rows(graph: Graph, prefix: str, counts: dict[str, int], depth: int) -> Iterator[Row]:
    previous: Node | None = None
    for node in graph.nodes:
        name, _, copy = node.name.rpartition(".")
        if (
            previous is not None
            and copy.isdigit()
            and previous.name.rpartition(".")[0] == name
            and alike(previous, node)
        ):
            previous = node
            continue
        previous = node
        path = f"{prefix}{node.name}"
        copies = sum(other.name.rpartition(".")[0] == name for other in graph.nodes) if name and copy.isdigit() else 1
        held = sum(count for key, count in counts.items() if key.startswith(f"{path}."))
        inputs = ", ".join(describe_spec(graph.spec(edge)) for edge in node.inputs.values())
        outputs = ", ".join(describe_spec(spec) for spec in node.outputs.values())
        shown = f"{'  ' * depth}{node.name}{f' (1 of {copies})' if copies > 1 else ''}"
        yield shown, kind(node), inputs, outputs, f"{held:,}" if held else ""
        if node.graph is not None:
            yield from node_rows(node.graph, f"{path}.", counts, depth + 1)


def alike(one: Node, other: Node) -> bool:
    """Return whether two nodes compute the same on the same shapes. Their names, and where their inputs come from, may
    differ."""
    return (
        (one.kind, one.component, one.expression, one.block, one.outputs)
        == (other.kind, other.component, other.expression, other.block, other.outputs)
        and (one.graph is None) == (other.graph is None)
        and (one.graph is None or other.graph is None or one.graph.nodes == other.graph.nodes)
    )


def kind(node: Node) -> str:
    """Return the type of a layer, the text of an expression, the name of a block, or `again: NAME` for a `reuse` node
    that calls the node NAME."""
    if node.component is not None:
        return str(node.component["type"])
    return {"expression": node.expression or "", "block": node.block or "", "reuse": f"again: {node.target}"}[node.kind]


def describe_spec(spec: TensorSpec) -> str:
    words = [str(spec)]
    if spec.dtype != "float32":
        words.append(spec.dtype)
    if spec.num_values is not None:
        words.append(f"0..{spec.num_values - 1}")
    return " ".join(words)
