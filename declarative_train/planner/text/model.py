"""Text of a plan's model and of the settings of its parameters, as two tables. Also the titles and aligned columns
that all texts of a plan use."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from declarative_train.components.adapters.adapted import is_added
from declarative_train.components.layers import LAYERS
from declarative_train.components.plugin_components import PLUGIN
from declarative_train.components.storages import storage_bytes
from declarative_train.core.amounts import amount, format_count
from declarative_train.files.open_files import format_path
from declarative_train.graph.graph import Node
from declarative_train.graph.partition import open_blocks
from declarative_train.plan.plan import ParameterPlan, Plan, WeightsPlan
from declarative_train.plan.tensor_maps import is_selected

_NUMBER = re.compile(r"[\d,]+(\.\d+)?")


def section(title: str, lines: Sequence[str]) -> str:
    """Return the title with the lines indented below it, or "" if there are no lines."""
    return "\n".join([title, *(f"  {line}" for line in lines)]) if lines else ""


def columns(rows: Sequence[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """Return the rows of a table as lines, in which every column is as wide as its widest cell. `numbers`: align
    numbers to the right."""
    if not rows:
        return []
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(_cell(cell, width, numbers) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cell(cell: str, width: int, numbers: bool) -> str:
    return cell.rjust(width) if numbers and _NUMBER.fullmatch(cell) else cell.ljust(width)


def component_in_words(component: dict[str, object]) -> str:
    """Return a component as text: its type and the fields that are not None or False, such as `adam lr 0.003 betas
    [0.9, 0.999]`."""
    fields = (
        f"{key} {value}"
        for key, value in component.items()
        if key not in ("type", PLUGIN) and value not in (None, False)
    )
    return " ".join([str(component["type"]), *fields])


def describe_model(plan: Plan) -> list[str]:
    from declarative_train.graph.cost import num_parameters  # imports torch, which an editor does not load

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
    """Return the key by which the table of nodes joins nodes to one row. Copies of a `repeat` that would look equal in
    the table have the same key; any other node has its own."""
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
    component = node.component or {}
    layer = LAYERS.get(kind := str(component["type"]))
    return kind if layer is None else layer.describe_data(component)


def _gives(node: Node) -> str:
    specs = list(node.outputs.items())
    shown = [f"{spec}" if len(specs) == 1 else f"{name} {spec}" for name, spec in specs[:3]]
    return ", ".join(shown) + (", ..." if len(specs) > 3 else "")


def _totals(plan: Plan) -> list[str]:
    own = [item for item in plan.parameters if item.tie is None]
    total = sum(item.num_elements for item in own)
    frozen = sum(item.num_elements for item in own if item.frozen)
    lines = [f"{format_count(total, 'parameter')} ({amount(total)}) in {format_count(len(own), 'tensor')}"]
    if frozen:
        lines[0] += f", {frozen:,} of them frozen"
    for storage in dict.fromkeys(item.storage for item in own if item.storage is not None):
        held = [item for item in own if item.storage == storage]
        size = amount(sum(storage_bytes(storage, item.shape) for item in held), "B")
        lines.append(f"{amount(sum(item.num_elements for item in held))} of them held in {storage}: {size}")
    bare = ", and has no adapter" if any(is_added(item.name) for item in plan.parameters) else ""
    lines += [f"{item.name} is tied to {item.tie}{bare}" for item in plan.parameters if item.tie is not None]
    given = (
        (weights.node or "the model", _format_excluded(weights), format_path(weights.path)) for weights in plan.weights
    )
    return lines + [f"start values of {held}{but} from {path}" for held, but, path in given]


def _format_excluded(weights: WeightsPlan) -> str:
    return f" (but {', '.join(weights.exclude)})" if weights.exclude else ""


MOST_GROUPS = 24


class UpdateGroup(NamedTuple):
    """Parameters that the optimizer updates in the same way. `rule`: text with the optimizer and its fields, except
    `lr` and `weight_decay`."""

    rule: str
    lr: float | None
    weight_decay: float | None
    parameters: list[ParameterPlan]

    @property
    def num_elements(self) -> int:
        return sum(parameter.num_elements for parameter in self.parameters)

    @property
    def names(self) -> str:
        first, more = self.parameters[0].name, len(self.parameters) - 1
        return f"{first} and {more} more" if more else first


def groups_of(plan: Plan, *, by_start: bool = False) -> list[UpdateGroup]:
    """Return the trained parameters in groups, in the order of the model. The optimizer updates all parameters of a
    group in the same way. Tied parameters are left out.

    `by_start`: also include frozen parameters, and put parameters with different kinds of initial values into different
    groups.
    """
    found: dict[str, UpdateGroup] = {}
    for parameter in plan.parameters:
        if parameter.tie is None and (by_start or not parameter.frozen):
            group = _group(parameter, parameter.optimizer or plan.training.optimizer)
            start = (parameter.init, _is_loaded(plan, parameter)) if by_start else None
            found.setdefault(json.dumps([*group[:3], start]), group).parameters.append(parameter)
    return list(found.values())


def _is_loaded(plan: Plan, parameter: ParameterPlan) -> bool:
    """Return whether a parameter's initial value comes from a file, so that its `init` has no effect."""
    if is_added(parameter.name):
        return False
    return any(_fills(weights, parameter.name) for weights in plan.weights)


def _fills(weights: WeightsPlan, name: str) -> bool:
    head = f"{weights.node}." if weights.node else ""
    return name.startswith(head) and not is_selected(weights.exclude, name.removeprefix(head))


def _group(parameter: ParameterPlan, optimizer: dict[str, object]) -> UpdateGroup:
    if parameter.frozen:
        return UpdateGroup("nothing: frozen", None, None, [])
    lr, own = optimizer.get("lr"), optimizer.get("weight_decay")
    decay = own if parameter.weight_decay is None else parameter.weight_decay
    return UpdateGroup(
        component_in_words({key: value for key, value in optimizer.items() if key not in ("lr", "weight_decay")}),
        lr * parameter.lr_scale if isinstance(lr, int | float) else None,
        float(decay) if isinstance(decay, int | float) else None,
        [],
    )


def describe_parameters(plan: Plan) -> list[str]:
    """Return a table of the groups of parameters with equal settings (such as lr and weight decay), as lines. Return []
    if no parameter has other settings than the defaults."""
    if not any(_is_set(parameter) for parameter in plan.parameters if parameter.tie is None):
        return []
    groups = groups_of(plan, by_start=True)
    rows = [["parameters", "tensors", "updated by", "lr", "weight decay", "start", "which"]]
    for group in groups[:MOST_GROUPS]:
        first = group.parameters[0]
        rows.append(
            [
                f"{group.num_elements:,}",
                f"{len(group.parameters):,}",
                group.rule,
                _number(group.lr),
                _number(group.weight_decay),
                _start(plan, first),
                group.names,
            ]
        )
    more = [f"and {len(groups) - MOST_GROUPS} more groups"] if len(groups) > MOST_GROUPS else []
    return columns(rows) + more


def _start(plan: Plan, parameter: ParameterPlan) -> str:
    if _is_loaded(plan, parameter):
        return "from the file"
    return "the layer's" if parameter.init is None else component_in_words(parameter.init)


def _is_set(parameter: ParameterPlan) -> bool:
    settings = (parameter.weight_decay, parameter.init, parameter.optimizer)
    return parameter.frozen or parameter.lr_scale != 1 or any(setting is not None for setting in settings)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def update_in_words(group: UpdateGroup) -> str:
    """Return a text on how the optimizer updates a group: `sgd momentum 0.9, lr 0.1, weight decay 0.01`."""
    lr = "" if group.lr is None else f", lr {group.lr:g}"
    return f"{group.rule}{lr}" + (f", weight decay {group.weight_decay:g}" if group.weight_decay else "")
