"""Which parameters get no gradient: those that only outputs without a loss, or `detach`, hang on.

torch's DistributedDataParallel waits for the gradient of every parameter it was given; torch's own search for unused
ones costs a walk in every step. The graph is static, so the history of one row's outputs tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from declarative_train.graph.build import build
from declarative_train.runtime.model import freeze

if TYPE_CHECKING:
    from declarative_train.graph.graph import Graph
    from declarative_train.plan.plan import Plan


def without_gradient(plan: Plan) -> frozenset[str]:
    """Names of parameters that the plan does not freeze and that no loss term reaches."""
    read = {name for term in plan.objective.terms for name in (term.input, term.target) if name is not None}
    if not _may_have_idle(plan.graph, read):
        return frozenset()
    module = build(
        plan.graph, plan.plugins, seed=plan.seed, ties={item.name: item.tie for item in plan.parameters if item.tie}
    )
    freeze(module, plan.parameters)
    module.eval()
    rows = [torch.zeros((1, *spec.shape), dtype=getattr(torch, spec.dtype)) for spec in plan.graph.inputs.values()]
    if plan.training.precision == "fp64":
        module.double()
        rows = [row.double() if row.is_floating_point() else row for row in rows]
    outputs = dict(zip(plan.graph.outputs, module(*rows), strict=True))
    ends = [outputs[name] for name in read if name in outputs and outputs[name].requires_grad]
    reached = {id(leaf) for leaf in leaves(ends)}
    return frozenset(name for name, item in module.named_parameters() if item.requires_grad and id(item) not in reached)


def leaves(ends: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors without history that autograd would write gradients of `ends` to."""
    found: list[torch.Tensor] = []
    waiting = [end.grad_fn for end in ends if end.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.append(node.variable)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def _may_have_idle(graph: Graph, read: set[str]) -> bool:
    """False for the usual model: every output is read by a loss, no output of any node is left over, no `detach`."""
    if not set(graph.outputs) <= read:
        return True
    return _has_loose_ends(graph)


def _has_loose_ends(graph: Graph) -> bool:
    used = {edge for node in graph.nodes for edge in node.inputs.values()} | set(graph.outputs.values())
    for node in graph.nodes:
        if node.kind == "expression" and "detach" in (node.expression or ""):
            return True
        if any(f"{node.name}:{output}" not in used for output in node.outputs):
            return True
        if node.graph is not None and _has_loose_ends(node.graph):
            return True
    return False
