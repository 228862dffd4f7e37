"""Models of libraries (transformers, timm) in a pipeline: each is replaced by a graph of its parts (such as layers), so
that stages can be cut between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from declarative_train.components.component import ModelParts
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.partition import open_blocks
from declarative_train.graph.read import PART, is_library, read_layer
from declarative_train.plan.checks.stages import model_in_one_stage
from declarative_train.plan.plan import ParameterPlan, Plan
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Axes

if TYPE_CHECKING:
    from declarative_train.graph.lower import Lowered


def split_models(
    recipe: Recipe, lowered: Lowered, parameters: tuple[ParameterPlan, ...]
) -> tuple[Lowered, tuple[ParameterPlan, ...], list[Diagnostic]]:
    """Split each library model into parts, if the recipe has a pipeline. Return the changed lowered recipe, the changed
    parameters, and diagnostics.

    The node of a split model gets the graph of its parts as `model_parts`. If parts share a parameter, each after the
    first gets its own, tied to the original. A model that cannot be split stays in one stage; a diagnostic gives the
    reason.
    """
    mode = recipe.mode
    if not isinstance(mode, Axes) or mode.pipeline is None:
        return lowered, parameters, []
    divided = next((axis for axis in ("tensor", "expert") if getattr(mode, axis) is not None), None)
    splitter = _Splitter(recipe.plugins, divided)
    graph = splitter.split(lowered.graph, "")
    lacking = len(open_blocks(graph, lowered.units).nodes) < mode.pipeline.stages
    span = recipe.span("parallelism.pipeline")
    found = [model_in_one_stage(span, path, reason, is_error=lacking) for path, reason in splitter.reasons.items()]
    tied = tuple(
        replace(item, name=name, tie=item.name, init=None)
        for item in parameters
        for name, source in splitter.ties.items()
        if source == item.name
    )
    return replace(lowered, graph=graph), (*parameters, *tied), found


def join_models(plan: Plan) -> Plan:
    """Return the plan as if `split_models` had not changed it: without `model_parts`, and without the tied parameters
    that were added for them."""
    paths: list[str] = []
    graph = _join(plan.graph, "", paths)
    if not paths:
        return plan
    own = tuple(f"{path}." for path in paths)
    kept = (item for item in plan.parameters if not (item.name.startswith(own) and str(item.tie).startswith(own)))
    return replace(plan, graph=graph, parameters=tuple(kept))


def _join(graph: Graph, prefix: str, paths: list[str]) -> Graph:
    """Return the graph with `model_parts` of every node set to None, so that library models are not divided into parts.
    Append the paths of the changed nodes to `paths`. `prefix`: path of the block that contains `graph`, with a dot at
    the end."""
    nodes = []
    for node in graph.nodes:
        if node.model_parts is not None:
            paths.append(f"{prefix}{node.name}")
        body = None if node.graph is None else _join(node.graph, f"{prefix}{node.name}.", paths)
        nodes.append(replace(node, graph=body, model_parts=None))
    return replace(graph, nodes=tuple(nodes))


class _Splitter:
    """Splitter of the library models in a graph into parts.

    divided  axis (`tensor` or `expert`) that already divides layers, so that no model can be split; None: there is none
    reasons  {path of a model that cannot be split: reason}
    ties     {path of a shared parameter in a later part: its path in the first part that has it}"""

    def __init__(self, plugins: Sequence[str], divided: str | None) -> None:
        self._plugins, self._divided = plugins, divided
        self.reasons: dict[str, str] = {}
        self.ties: dict[str, str] = {}

    def split(self, graph: Graph, prefix: str) -> Graph:
        """Return the graph with its library models split into parts. `prefix`: path of the block that contains `graph`,
        with a dot at the end."""
        called, known = {node.target for node in graph.nodes if node.kind == "reuse"}, graph.specs()
        nodes = []
        for node in graph.nodes:
            path = f"{prefix}{node.name}"
            if node.graph is not None:
                node = replace(node, graph=self.split(node.graph, f"{path}."))
            elif is_library(node.component):
                inputs = {port: known[edge] for port, edge in node.inputs.items()}
                found = self._parts_of(node, inputs, is_called=node.name in called)
                if isinstance(found, str):
                    self.reasons[path] = found
                else:
                    node = replace(node, model_parts=_chain(node, inputs, found.outputs))
                    self.ties |= {f"{path}.{name}": f"{path}.{source}" for name, source in found.ties.items()}
            nodes.append(node)
        return replace(graph, nodes=tuple(nodes))

    def _parts_of(self, node: Node, inputs: Mapping[str, TensorSpec], *, is_called: bool) -> ModelParts | str:
        if self._divided is not None:
            return f"its layers are divided over the ranks of `{self._divided}`"
        if is_called:
            return "it is called from several places"
        assert node.component is not None
        return read_layer(node.component, self._plugins).split(inputs)


def _chain(node: Node, inputs: Mapping[str, TensorSpec], parts: Mapping[str, TensorSpec]) -> Graph:
    """Return a graph of a library's model, in which each part of the model is a node. Each part reads the output of the
    previous one; the first part reads the first input of the model. All parts also read the other inputs. `parts`:
    {path of a part: spec of its output}."""
    first, *others = node.inputs
    (output,) = node.outputs
    edge, nodes = first, []
    for path, spec in parts.items():
        wires = {"main": edge, **{port: port for port in others}}
        component = {**(node.component or {}), PART: path}
        nodes.append(Node(path, "layer", wires, {output: spec}, component))
        edge = f"{path}:{output}"
    return Graph(dict(inputs), tuple(nodes), {output: edge})
