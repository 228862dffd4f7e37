"""activation-before-loss (O008)

Finds: a softmax, sigmoid or relu in front of a loss that takes logits, or logits in front of `nll`.
Why:   `cross_entropy` and `bce_with_logits` apply theirs inside: applied twice the model still learns, only worse; and
       `nll` takes log-probabilities as they are, so that its value falls without bound for anything else.
Bad:
    model:
      graph: {probs: {type: softmax, input: logits}}
    objective:
      loss: {input: probs}
Good:
    objective:
      loss: {input: logits}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model_tree import BlockNode, LayerNode, Scope, Wire

_ACTIVATIONS = ("hardsigmoid", "relu", "relu6", "sigmoid", "softmax")
_REFUSED = {
    "bce_with_logits": ("logits", _ACTIVATIONS),
    "cross_entropy": ("logits", _ACTIVATIONS),
    "nll": ("log-probabilities", ("linear", *_ACTIVATIONS)),
}


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.objective is None or draft.scope is None:
        return
    for name, term in draft.objective.losses.items():
        wanted, refused = _REFUSED.get(term.component.type, ("", ()))
        wire = draft.scope.outputs.get(term.input or "")
        layer = None if wire is None else _layer(draft.scope, wire)
        if layer is None or layer.layer.type not in refused:
            continue
        kind, given = term.component.type, layer.layer.type
        way_out = "put a `log_softmax` before it, or use `cross_entropy`"
        if kind != "nll":
            way_out = f"leave the {given} out of what the loss reads; metrics and exports may have a node of their own"
        message = f"{kind} takes {wanted}, and `{term.input}` comes out of a {given}"
        yield warning("O008", draft.span(f"objective.losses.{name}.input"), message, way_out)


def _layer(scope: Scope, wire: Wire) -> LayerNode | None:
    """The layer that a wire comes from, inside blocks too."""
    name, _, output = wire.partition(":")
    node = next((node for node in scope.nodes if node.name == name), None)
    if isinstance(node, BlockNode):
        inner = node.scope.outputs.get(output)
        return None if inner is None else _layer(node.scope, inner)
    return node if isinstance(node, LayerNode) else None
