"""activation-before-loss (O008)

Finds: a softmax, sigmoid or relu, as a layer or in an expression, in front of a loss that takes logits, or logits in
       front of `nll`.
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
from declarative_train.recipe.model.tree import operation_of

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
        given = None if wire is None else operation_of(draft.scope, wire)
        if given not in refused:
            continue
        kind = term.component.type
        hint = "put a `log_softmax` before it, or use `cross_entropy`"
        if kind != "nll":
            hint = f"leave the {given} out of what the loss reads; metrics and exports may have a node of their own"
        message = f"{kind} takes {wanted}, and `{term.input}` comes out of a {given}"
        yield warning("O008", draft.span(f"objective.losses.{name}.input"), message, hint)
