"""The settings of the parameters as a table: which of them are updated how, and how they start.

Parameters with equal settings are one row; a model whose parameters all are as the recipe's optimizer says has none.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from declarative_train.components.adapters.adapted import is_added
from declarative_train.plan.plan import ParameterPlan, Plan
from declarative_train.plan.text.tables import columns, component_in_words

MOST_GROUPS = 24


class Group(NamedTuple):
    """Parameters that are updated alike. `rule` is the optimizer without what `lr` and `weight_decay` say."""

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


def groups_of(plan: Plan, *, by_start: bool = False) -> list[Group]:
    """In the order of the model, without tied and frozen parameters; `by_start`: apart also where they start
    differently, and with those that are frozen."""
    found: dict[str, Group] = {}
    for parameter in plan.parameters:
        if parameter.tie is None and (by_start or not parameter.frozen):
            group = _group(parameter, parameter.optimizer or plan.training.optimizer)
            start = (parameter.init, _is_loaded(plan, parameter)) if by_start else None
            found.setdefault(json.dumps([*group[:3], start]), group).parameters.append(parameter)
    return list(found.values())


def _is_loaded(plan: Plan, parameter: ParameterPlan) -> bool:
    """Whether its start values come from a file, whatever its rule says."""
    if is_added(parameter.name):
        return False
    return any(not weights.node or parameter.name.startswith(f"{weights.node}.") for weights in plan.weights)


def _group(parameter: ParameterPlan, optimizer: dict[str, object]) -> Group:
    if parameter.frozen:
        return Group("nothing: frozen", None, None, [])
    lr, own = optimizer.get("lr"), optimizer.get("weight_decay")
    decay = own if parameter.weight_decay is None else parameter.weight_decay
    return Group(
        component_in_words({key: value for key, value in optimizer.items() if key not in ("lr", "weight_decay")}),
        lr * parameter.lr_scale if isinstance(lr, int | float) else None,
        float(decay) if isinstance(decay, int | float) else None,
        [],
    )


def describe_parameters(plan: Plan) -> list[str]:
    """Nothing where all are alike and as training.optimizer says."""
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


def update_in_words(group: Group) -> str:
    """`sgd momentum 0.9, lr 0.1, weight decay 0.01`."""
    lr = "" if group.lr is None else f", lr {group.lr:g}"
    return f"{group.rule}{lr}" + (f", weight decay {group.weight_decay:g}" if group.weight_decay else "")
