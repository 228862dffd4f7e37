"""A plan that an earlier dtrain made, in the words of this one: to be compared with a plan of today.

What a component did not have then has its default, which is what it did; a shape that left the batch out begins with
it. What cannot be read any more stays as it is, and then differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from declarative_train.components.component import Component, Layer
from declarative_train.components.datasets import DATASETS
from declarative_train.components.expressions.grammar import parse
from declarative_train.components.expressions.tree import ExpressionError
from declarative_train.components.fields import FIELDS
from declarative_train.components.inits import INITS
from declarative_train.components.losses import LOSSES
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.components.plugged import PLUGIN
from declarative_train.components.registry import ComponentError
from declarative_train.components.splits import SPLITS
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.data.spec import DataSpec
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.read import read_layer
from declarative_train.plan.plan import ParameterPlan, Plan

Data = dict[str, object]


def of_today(plan: Plan) -> Plan:
    terms = tuple(replace(each, component=_read(LOSSES.read, each.component)) for each in plan.objective.terms)
    training = replace(
        plan.training,
        optimizer=_read(OPTIMIZERS.read, plan.training.optimizer),
        lr_schedule=_read(LR_SCHEDULES.read, plan.training.lr_schedule),
    )
    return replace(
        plan,
        data=_data(plan.data),
        batch_graph=_graph(plan.batch_graph),
        graph=_graph(plan.graph),
        parameters=tuple(map(_parameter, plan.parameters)),
        objective=replace(plan.objective, terms=terms),
        training=training,
    )


def _read(read: Callable[[Mapping[str, object]], Component], data: Data) -> Data:
    if PLUGIN in data:
        return data
    try:
        found = read(data)
    except (ComponentError, LookupError, ValueError):  # pydantic's is one of these
        return data
    return (found.today() if isinstance(found, Layer) else found).as_data()


def _graph(graph: Graph) -> Graph:
    return replace(graph, nodes=tuple(map(_node, graph.nodes)))


def _node(node: Node) -> Node:
    if node.graph is not None:
        return replace(node, graph=_graph(node.graph))
    if node.component is not None:
        return replace(node, component=_read(read_layer, node.component))
    if node.expression is not None:
        try:
            return replace(node, expression=parse(node.expression).today)
        except ExpressionError:
            return node
    return node


def _parameter(item: ParameterPlan) -> ParameterPlan:
    init = None if item.init is None else _read(INITS.read, item.init)
    optimizer = None if item.optimizer is None else _read(OPTIMIZERS.read, item.optimizer)
    return replace(item, init=init, optimizer=optimizer)


def _data(data: DataSpec) -> DataSpec:
    sets = tuple(
        replace(
            each,
            source=None if each.source is None else _read(DATASETS.read, each.source),
            split=None if each.split is None else _read(SPLITS.read, each.split),
        )
        for each in data.sets
    )
    return replace(
        data,
        source=_read(DATASETS.read, data.source),
        fields=tuple(replace(each, component=_read(FIELDS.read, each.component)) for each in data.fields),
        sets=sets,
        transforms=tuple(_read(TRANSFORMS.read, each) for each in data.transforms),
    )
