"""Rules about losses and metrics.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.diagnostics.suggest import did_you_mean, suggest_fix
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.walk import operation_of


def metric_of_which_loss(draft: Draft) -> Iterator[Diagnostic]:
    """metric-of-which-loss (O001)

    Finds: a metric without `of` and without `input`, in an objective with several losses.
    Why:   such a metric uses the input, target and mask of a loss, but it is not clear of which one.
    Diff:
        objective:
          losses:
            kind:  {type: cross_entropy, input: logits, target: digit}
            again: {type: cross_entropy, input: logits, target: digit, weight: 0.5}
    -     metrics: [accuracy]
    +     metrics: {accuracy: {of: kind}}
    """
    objective = draft.objective
    if objective is None or len(objective.losses) < 2:
        return
    for name, metric in objective.metrics.items():
        if metric.of is None and metric.input is None:
            message = f"`{name}` does not specify which of the {len(objective.losses)} losses it belongs to"
            hint = f"write `{name}: {{of: {next(iter(objective.losses))}}}`; losses: {', '.join(objective.losses)}"
            yield error("O001", draft.span.key(f"objective.metrics.{name}"), message, hint)


def unknown_term(draft: Draft) -> Iterator[Diagnostic]:
    """unknown-term (O002)

    Finds: a metric whose `of` names a loss that does not exist.
    Why:   the metric takes its input, target and mask from that loss.
    Diff:
        objective:
    -     metrics: {accuracy: {of: kind}}
    +     metrics: {accuracy: {of: loss}}
    """
    if draft.objective is None:
        return
    known = draft.objective.losses
    for name, metric in draft.objective.metrics.items():
        if metric.of is not None and metric.of not in known:
            span = draft.span(f"objective.metrics.{name}.of")
            fixes = suggest_fix(span, metric.of, known)
            yield error("O002", span, f"there is no loss `{metric.of}`", did_you_mean(metric.of, known), fixes=fixes)


def metric_edges_twice(draft: Draft) -> Iterator[Diagnostic]:
    """metric-edges-twice (O003)

    Finds: a metric that has `of` and also its own input, target or mask; or a metric that has its own target or mask
           but no input.
    Why:   `of` stands for the input, target and mask of a loss together. They cannot be combined with others.
    Diff:
        objective:
    -     metrics: {accuracy: {of: loss, input: logits}}
    +     metrics: {accuracy: {of: loss}}
    """
    if draft.objective is None:
        return
    for name, metric in draft.objective.metrics.items():
        path = f"objective.metrics.{name}"
        own = [key for key in ("input", "target", "mask") if getattr(metric, key) is not None]
        if metric.of is not None and own:
            message = f"`{name}` has both `of: {metric.of}` and its own {own[0]}"
            related = (Related(draft.span(f"{path}.of"), "set here"),)
            yield error("O003", draft.span.key(f"{path}.{own[0]}"), message, "remove one of them", related)
        elif own and "input" not in own:
            message = f"`{name}` has its own {own[0]}, but no input"
            yield error(
                "O003", draft.span.key(f"{path}.{own[0]}"), message, "add `input`, or set `of` to use those of a loss"
            )


def loss_target(draft: Draft) -> Iterator[Diagnostic]:
    """loss-target (O004)

    Finds: a loss that needs a target and has none, or a loss with a target that it does not use.
    Why:   a target without use often means that the wrong type of loss was chosen.
    Diff:
        objective:
    -     loss: {type: mse, input: logits}
    +     loss: {type: cross_entropy, input: logits, target: digit}
    """
    if draft.objective is None:
        return
    for name, term in draft.objective.losses.items():
        path, kind = f"objective.losses.{name}", term.component.type
        if term.component.needs_target and term.target is None:
            yield error("O004", draft.span(f"{path}.type"), f"{kind} needs a target", "add `target: FIELD`")
        if not term.component.needs_target and term.target is not None:
            span = draft.span.key(f"{path}.target")
            yield error("O004", span, f"{kind} does not use a target", "remove it")


def taken_name(draft: Draft) -> Iterator[Diagnostic]:
    """taken-name (O005)

    Finds: a set in `data.split` called `training` or `train`, or a metric called `loss`.
    Why:   these names are taken: the training set has all rows that are in no other set, its metrics are
           `training/...`, and `<set>/loss` is the total loss.
    Diff:
        objective:
    -     metrics: {loss: {type: accuracy}}
    +     metrics: {accuracy: {type: accuracy}}
    """
    for name in ("training", "train"):
        if draft.split is not None and name in draft.split:
            span = draft.span.key(f"data.split.{name}")
            message = f"the rows outside of data.split are the training set: no other set can be named `{name}`"
            yield error("O005", span, message, "remove it, or choose another name")
    if draft.objective is not None and "loss" in draft.objective.metrics:
        span = draft.span.key("objective.metrics.loss")
        yield error("O005", span, "`loss` is the total loss: a metric cannot have this name", "choose another name")


def no_losses(draft: Draft) -> Iterator[Diagnostic]:
    """no-losses (O006)

    Finds: an objective without a loss.
    Why:   there is nothing to minimise.
    Diff:
        objective:
    -     loss: null
    +     loss: {type: cross_entropy, input: logits, target: digit}
    """
    if draft.objective is not None and not draft.objective.losses:
        message = "there is no loss: nothing is minimised"
        yield error("O006", draft.span.key("objective.losses"), message, "add `loss`", rests_on="all files")


def metric_target(draft: Draft) -> Iterator[Diagnostic]:
    """metric-target (O007)

    Finds: a metric that needs a target and has none, or a metric with a target that it does not use.
    Why:   a metric without its own target uses that of its loss, but some losses, such as `mean`, have none.
    Diff:
        objective:
    -     metrics: {accuracy: {input: logits}}
    +     metrics: {accuracy: {input: logits, target: digit}}
    """
    objective = draft.objective
    if objective is None:
        return
    only = next(iter(objective.losses)) if len(objective.losses) == 1 else None
    for name, metric in objective.metrics.items():
        key, kind = draft.span.key(f"objective.metrics.{name}"), metric.component.type
        if metric.input is not None and metric.of is None:
            if metric.component.needs_target and metric.target is None:
                yield error("O007", key, f"{kind} needs a target", "add `target: FIELD`")
            if not metric.component.needs_target and metric.target is not None:
                span = draft.span.key(f"objective.metrics.{name}.target")
                yield error("O007", span, f"{kind} does not use a target", "remove it")
        term = objective.losses.get(metric.of or only or "")
        borrows = metric.input is None and metric.target is None
        if borrows and term is not None and term.target is None and metric.component.needs_target:
            if term.component.needs_target:
                continue  # reported for the loss, whose target the metric uses
            hint = f"write `{name}: {{input: NODE, target: FIELD}}`"
            yield error("O007", key, f"{kind} needs a target, but the loss `{metric.of or only}` has none", hint)


_ACTIVATIONS = ("hardsigmoid", "relu", "relu6", "sigmoid", "softmax")

_REFUSED = {
    "bce_with_logits": ("logits", _ACTIVATIONS),
    "cross_entropy": ("logits", _ACTIVATIONS),
    "kl_div": ("log-probabilities", ("linear", *_ACTIVATIONS)),
    "nll": ("log-probabilities", ("linear", *_ACTIVATIONS)),
    "poisson_nll": ("logarithms of rates", ("exp", "softplus", *_ACTIVATIONS)),
}


def activation_before_loss(draft: Draft) -> Iterator[Diagnostic]:
    """activation-before-loss (O008)

    Finds: a layer or expression before a loss that expects another input: a softmax, sigmoid or relu before
           `cross_entropy` or `bce_with_logits`; logits or one of these before `nll` or `kl_div`; a rate before
           `poisson_nll`; a dropout before any loss of classes or numbers.
    Why:   `cross_entropy` and `bce_with_logits` expect logits and apply softmax or sigmoid themselves; applied twice,
           the model learns less well. `nll` and `kl_div` expect log-probabilities; with other inputs their value is
           unbounded. `poisson_nll` expects the logarithm of the rate, which may be negative. A dropout replaces outputs
           by 0, which the loss then compares with the target as if the model had computed them.
    Diff:
    -   model:
    -     graph: {probs: {type: softmax, input: logits}}
        objective:
    -     loss: {input: probs}
    +     loss: {input: logits}
    """
    if draft.objective is None or draft.scope is None:
        return
    for name, term in draft.objective.losses.items():
        wanted, refused = _REFUSED.get(term.component.type, ("", ()))
        wire = draft.scope.outputs.get(term.input or "")
        given = None if wire is None else operation_of(draft.scope, wire)
        if given == "dropout" and term.component.about:
            message = f"the loss `{name}` reads `{term.input}`, the output of a dropout: values that are 0 by chance"
            yield warning(
                "O008", draft.span(f"objective.losses.{name}.input"), message, "move it before the last layer"
            )
        if given not in refused or not getattr(term.component, "log_input", True):
            continue
        kind = term.component.type
        hint = f"remove the {given} before the loss; metrics and exports may use a separate node"
        if kind == "kl_div":
            hint = f"put a `log_softmax` {'in place of' if given == 'softmax' else 'after'} the {given}"
        elif kind == "nll":
            hint = "put a `log_softmax` before it, or use `cross_entropy`"
        elif kind == "poisson_nll":
            hint = "set `log_input: false`"
        message = f"{kind} expects {wanted}, but `{term.input}` is the output of a {given}"
        yield warning("O008", draft.span(f"objective.losses.{name}.input"), message, hint)
