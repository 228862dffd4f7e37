"""Messages on the axes `tensor`, `expert` and `context`.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.core.span import Span


def nothing_is_divided(span: Span, reasons: Mapping[str, str], what: str = "no layer") -> Diagnostic:
    """nothing-is-divided (P110)

    Finds: a `tensor` axis over which no layer of the recipe's model can be divided, or no layer of a library's
           model in it.
    Why:   every rank would hold and compute the whole model for the same rows. The ranks can divide pairs of linear
           layers (the second reads the features of the first), the heads of attention, and the rows of an embedding;
           the sizes must be multiples of the number of ranks. A model of transformers can be divided if the library has
           a plan for its class (transformers-models.md).
    Diff:
    -   parallelism: {tensor: 3}
    -   layout: {gpus: 3}
    +   parallelism: {tensor: 2}
    +   layout: {gpus: 2}
    """
    shown = "".join(f"; `{path}`: {reason}" for path, reason in list(reasons.items())[:3])
    message = f"{what} can be divided, so that every rank computes the whole model{shown}"
    return warning("P110", span, message, "use a number of ranks that divides the sizes of the layers, or ddp or fsdp")


def experts_do_not_divide(span: Span, path: str, reason: str) -> Diagnostic:
    """experts-do-not-divide (P111)

    Finds: an `expert` axis whose number of ranks does not divide the experts of a layer, or a model of transformers
           whose experts cannot be divided in the way of the library's plan (transformers-models.md).
    Why:   each rank must hold the same number of experts: then ranks send as much as they receive if all experts are
           used equally.
    Diff:
        model: {graph: {act: {type: moe, experts: 4, top_k: 1, hidden: 32}}}
    -   parallelism: {expert: 3}
    -   layout: {gpus: 3}
    +   parallelism: {expert: 4}
    +   layout: {gpus: 4}
    """
    hint = "use a number of ranks that divides the experts of every layer, or ddp or fsdp"
    return error("P111", span, f"`{path}`: {reason}", hint)


def no_experts(span: Span, models: Sequence[str] = ()) -> Diagnostic:
    """no-experts (P112)

    Finds: an `expert` axis for a model without experts: it has neither a layer `moe` nor a model of transformers whose
           class has a plan of the library to divide experts (transformers-models.md).
    Why:   the axis divides experts. Without any, its ranks only average gradients, which the axis `replicate` does too.
    Diff:
    -   parallelism: {expert: 2}
    +   parallelism: ddp
        layout: {gpus: 2}
    """
    message = "the model has no layer `moe`, whose experts could be divided"
    if models:
        message += f", and the library has no plan for experts of {' or '.join(f'`{each}`' for each in models)}"
    return error("P112", span, message, "use ddp or fsdp")


def positions_not_divided(span: Span, reason: str) -> Diagnostic:
    """positions-not-divided (P113)

    Finds: a `context` axis for a model or an objective that mixes the positions of a sequence, or for sequences whose
           length cannot be divided over the ranks.
    Why:   each rank computes only its own positions. Self-attention exchanges keys between ranks, and `moe` exchanges
           the sums for its balance loss; everything else, such as a mean over positions or a convolution, would see
           only a part of the sequence.
    Diff:
    -   parallelism: {context: 2}
    +   parallelism: ddp
        layout: {gpus: 2}
    """
    return error("P113", span, f"the positions of a batch cannot be divided: {reason}", "use ddp or fsdp")
