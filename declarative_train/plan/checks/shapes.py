"""Messages on shapes and types that do not fit.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, Severity, error, warning
from declarative_train.core.span import Span


def no_gradient(span: Span, term: str, input: str, stops: tuple[Related, ...]) -> Diagnostic:
    """no-gradient (G009)

    Finds: a loss term from which no parameter gets a gradient, because a function between them stops the gradient or
           has no derivative in torch.
    Why:   `detach`, comparisons, `argmax`, `int` and `one_hot` have no derivative, and that of `round`, `floor` and
           `sign` is zero. The run would end normally without learning anything, or fail in the first backward.
    Diff:
        model:
          graph:
    -       chosen: float(logits > 0)
    +       chosen: sigmoid(logits)
            far: mean(square(chosen), dim=-1)
        objective:
          losses: {far: {type: mean, input: far}}
          metrics: {accuracy: {input: logits, target: digit}}
    """
    message = f"no parameter receives a gradient from the loss `{term}`: it is lost before `{input}`"
    hint = f"remove the function that stops the gradient; to watch `{input}` only, make it a metric"
    return error("G009", span, message, hint, stops)


def no_derivative(span: Span, term: str, input: str, stops: tuple[Related, ...]) -> Diagnostic:
    """Report a loss term whose input is computed by a function without a derivative (G009). `stops`: the places of
    these functions in the recipe, each with a message."""
    message = f"the loss `{term}` cannot be used for training: a function before `{input}` has no derivative"
    return error("G009", span, message, "for the value of `//` use `floor(detach(x / y))`", stops)


def target_that_trains(span: Span, term: str, target: str, node: str | None) -> Diagnostic:
    """target-that-trains (G024)

    Finds: a target that depends on trained parameters, if the input of the loss depends on some too, or if the loss is
           not symmetric (`kl_div`, `cross_entropy`).
    Why:   the loss would move the target towards the prediction, until both agree on a constant. Freeze the teacher, or
           put its output into `detach`; the input of a loss is the side that should be trained.
    Diff:
        model:
          graph:
            teacher: {type: linear, out_features: 10, input: pixels}
    -       soft: softmax(teacher)
    +       soft: detach(softmax(teacher))
            hidden: {input: pixels}
        objective:
          losses:
            same: {type: cross_entropy, input: logits, target: soft}
            kind: {type: cross_entropy, input: teacher, target: digit}
          metrics: {accuracy: {of: kind}}
    """
    if node is None:
        message = f"the loss `{term}` trains its target `{target}`, and not its input: its sides are swapped"
        return warning("G024", span, message, "exchange `input` and `target`")
    message = f"the loss `{term}` trains its target `{target}` too, by `{node}`: both sides can agree on a constant"
    hint = f"use `detach({target})`, or freeze what makes it: `{node.partition('.')[0]}: {{frozen: true}}`"
    return warning("G024", span, message, hint)


def idle_parameters(span: Span, node: str, names: Sequence[str]) -> Diagnostic:
    """idle-parameters (G010)

    Finds: parameters on which no loss term depends, while others are trained.
    Why:   they keep their initial values. Examples are a head that only a metric reads, and layers before a `detach`.
           The optimizer leaves them out in every mode, so weight decay does not change them either.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 64, input: pixels}
            act: {type: relu}
            logits: {type: linear, out_features: 10}
            other: {type: linear, out_features: 10, input: act}
        objective:
    -     metrics: {other: {type: accuracy, input: other, target: digit}}
    +     losses:
    +       first: {type: cross_entropy, input: logits, target: digit}
    +       second: {type: cross_entropy, input: other, target: digit}
    +     metrics: {accuracy: {of: first}, other: {type: accuracy, input: other, target: digit}}
    """
    shown = ", ".join(f"`{name}`" for name in names[:3]) + (", ..." if len(names) > 3 else "")
    message = f"no loss reaches {format_count(len(names), 'parameter')} of `{node}`: {shown}; they are never trained"
    hint = f"use their output in a loss, or freeze them: `model.parameters: {{{node}: {{frozen: true}}}}`"
    return warning("G010", span, message, hint)


def no_images(span: Span, word: bool) -> Diagnostic:
    """no-images (G023)

    Finds: `training.channels_last` of a model without a convolution over images.
    Why:   this key sets the memory order of the inputs of `conv2d` and `conv_transpose2d`, and the model has no such
           layer.
    Diff:
    -   training: {channels_last: true}
    +   training: {channels_last: auto}
    """
    message = f"`channels_last: {str(word).lower()}` has no effect here: the model has no convolution over images"
    return error("G023", span, message, "remove it; `auto` is the default")


def lone_sample(span: Span, name: str) -> Diagnostic:
    """lone-sample (G012)

    Finds: a node or loss that compares samples, such as `batch_norm` or `info_nce`, but only gets one sample at a time.
    Why:   a value minus its own mean is 0, and a single candidate is always the right one, so nothing is learned.
    Diff:
        model:
          graph:
            hidden: {type: linear, out_features: 64, input: pixels}
    -       act: {type: batch_norm}
    +       act: {type: batch_norm, over: 12 samples}
            logits: {type: linear, out_features: 10}
    -   training: {global_batch_size: 2}
    """
    message = f"`{name}` gets one sample at a time, so its output is the same for all samples"
    return error("G012", span, message, "set `over: 16 samples`, or use larger microbatches")


def step_fails(span: Span, phase: str, message: str, node: str | None) -> Diagnostic:
    """step-fails (G013)

    Finds: a model whose first step fails when it is tried with the first rows: an operation fails, or a loss is not
           finite.
    Why:   the run would stop there; this check also names the node that causes it.
    Diff:
        model:
          graph:
    -       size: logits / sum(logits - logits, dim=-1, keepdim=true)
    +       size: logits / (1 + sum(abs(logits), dim=-1, keepdim=true))
        objective:
          loss: {input: size}
    """
    where = "" if node is None else f" in `{node}`"
    return error("G013", span, f"the first {phase} step fails{where}", f"torch says: {message}")


def not_finite(span: Span, term: str, value: float, culprit: tuple[str, Span] | None, *, skips: bool) -> Diagnostic:
    """Report that the loss `term` is nan or infinite in the first step (G013). `culprit`: the node that computed the
    first value that is not finite, and its span in the recipe. `skips`: the recipe has `non_finite: skip`, so this is
    only a warning."""
    made = (
        () if culprit is None else (Related(culprit[1], f"the first such number is in the output of `{culprit[0]}`"),)
    )
    found = error(
        "G013",
        span,
        f"the loss `{term}` is {value:g} in the first step",
        "check the divisors, and the arguments of logarithms and roots",
        made,
    )
    return found._replace(severity=Severity.WARNING) if skips else found
