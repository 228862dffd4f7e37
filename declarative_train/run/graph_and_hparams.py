"""Model graph and hyper-parameters of a run, in the form in which TensorBoard shows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.settings import select_distinguishing, select_overridden
from declarative_train.run.event import GraphNode

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan


def model_graph(plan: Plan) -> tuple[GraphNode, ...]:
    """Return the nodes of the drawn graph: fields, graph nodes and losses. In a node's path, each block and each copy
    of a `repeat` is a folder."""
    found: list[GraphNode] = []
    made = {field.name: f"fields/{field.name}" for field in plan.data.fields}
    found += [GraphNode(made[field.name], "field", (), (-1, *field.tensor.shape)) for field in plan.data.fields]
    made |= _walk(plan.batch_graph, "", made, found)
    made |= _walk(plan.graph, "", made, found)
    for term in plan.objective.terms:
        inputs = tuple(made[each] for each in (term.input, term.target, term.mask) if each is not None and each in made)
        found.append(GraphNode(f"loss/{term.name}", str(term.component["type"]), inputs, ()))
    return tuple(found)


def _walk(graph: Graph, prefix: str, sources: Mapping[str, str], found: list[GraphNode]) -> dict[str, str]:
    """Append the nodes of `graph`, and of the blocks in it, to `found`. Return {output of `graph`: path of the node
    that computes it}. `prefix`: beginning of the nodes' paths. `sources`: {input of `graph`: path of the node that
    computes it}."""
    made = dict(sources)
    for node in graph.nodes:
        path = prefix + node.name.replace(".", "/")
        inputs = {port: made[edge] for port, edge in node.inputs.items()}
        if node.graph is not None:
            inside = _walk(node.graph, f"{path}/", inputs, found)
            made |= {f"{node.name}:{output}": inside[output] for output in node.outputs}
            continue
        shape = next((spec.shape for spec in node.outputs.values()), ())
        found.append(GraphNode(path, _operation(node), tuple(inputs.values()), (-1, *shape)))
        made |= {f"{node.name}:{output}": path for output in node.outputs}
    return {output: made[edge] for output, edge in graph.outputs.items()}


def _operation(node: Node) -> str:
    if node.component is not None:
        return str(node.component["type"])
    return node.expression or node.kind


Value = str | int | float | bool
_SHORT = {
    "parallelism": "mode",
    "training.optimizer.lr": "lr",
    "training.optimizer.type": "optimizer",
    "training.lr_schedule.type": "lr_schedule",
}
_ALWAYS = ("training.", "vars.", "seed")


def hyperparameters(plan: Plan) -> dict[str, Value]:
    """Return the hyper-parameters of a run by name, for TensorBoard's table of runs. They are the settings in
    `training`, `vars`, `--set` and a sweep, the seed, and facts about the plan such as its mode. Settings without a
    value are left out."""
    training = plan.training
    found: dict[str, Value] = {"mode": plan.layout.mode, "ranks": len(plan.layout.ranks)}
    asked = select_overridden(plan.overrides, plan.settings)
    for key in select_distinguishing(key for key in plan.settings if key in asked or key.startswith(_ALWAYS)):
        found |= _flat(tensorboard_name(key), plan.settings[key])
    found |= {"steps": training.num_steps, "global_batch_size": plan.batch.global_batch_size}
    found["parameters"] = sum(item.num_elements for item in plan.parameters if item.tie is None)
    found.setdefault("optimizer", str(training.optimizer["type"]))
    if isinstance(lr := training.optimizer.get("lr"), int | float):
        found.setdefault("lr", lr)
    return found


def tensorboard_name(key: str) -> str:
    """Return the name that a setting has in TensorBoard's table of runs. `key`: its dotted path in the recipe."""
    return _SHORT.get(key, key.removeprefix("training."))


def _flat(name: str, value: object) -> dict[str, Value]:
    if isinstance(value, bool | int | float | str):
        return {name: value}
    return {name: ", ".join(map(str, value))} if isinstance(value, list | tuple) else {}
