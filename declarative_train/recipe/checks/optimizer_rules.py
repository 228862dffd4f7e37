"""Rules about optimizers: the learning rate, the weight decay and the betas.

Each public function that returns diagnostics is one rule. Its docstring is the manual page of its diagnostic code.
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Optimizer
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Fix, Related, error, warning
from declarative_train.core.span import Span
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.model.walk import all_layers

_FAR_ABOVE, _FAR_BELOW = 10, 1e-3


def implausible_lr(draft: Draft) -> Iterator[Diagnostic]:
    """implausible-lr (O013)

    Finds: a learning rate that is 0 or far outside of the usual range of the optimizer, or that `lr_scale` raises far
           above this range.
    Why:   above ten times the largest usual rate, a run diverges in its first steps or learns nothing. Below a
           thousandth of the smallest one, its parameters hardly change. Neither gives an error.
    Diff:
        training:
    -     optimizer: {type: adam, lr: 10}
    +     optimizer: {type: adam, lr: 1e-3}
    """
    for optimizer, path, at in list_optimizers(draft):
        lr = getattr(optimizer, "lr", None)
        low, high = optimizer.usual_lr
        usual = f"usual values are {low:g} to {high:g}"
        span = at if path is None else draft.span((*path, "lr"))
        if lr == 0:
            yield warning("O013", span, "an lr of 0: no step changes a parameter", usual)
        elif lr is not None and not low * _FAR_BELOW <= lr <= high * _FAR_ABOVE:
            far = "above" if lr > high else "below"
            yield warning("O013", span, f"an lr of {lr:g} is far {far} the usual range of `{optimizer.type}`", usual)
    for rule in draft.rules:
        common = None if draft.training is None else draft.training.optimizer
        scale, used = rule.settings.lr_scale, rule.settings.optimizer or common
        lr = getattr(used, "lr", None)
        if scale is None or used is None or lr is None or lr > used.usual_lr[1] * _FAR_ABOVE:
            continue
        if lr * scale > used.usual_lr[1] * _FAR_ABOVE:
            span = rule.span if rule.prefix else draft.span(("model", "parameters", rule.selector, "lr_scale"))
            message = f"an lr of {lr:g} x {scale:g} is far above the usual range of `{used.type}`"
            yield warning("O013", span, message, f"usual values are up to {used.usual_lr[1]:g}")


_SHRINKS_FAST = 0.01


def implausible_weight_decay(draft: Draft) -> Iterator[Diagnostic]:
    """implausible-weight-decay (O019)

    Finds: a weight decay whose product with the learning rate is 0.01 or more.
    Why:   each step would remove at least 1% of every weight, and 100 steps two thirds of it: the weights would follow
           the decay and not the loss.
    Diff:
        training:
    -     optimizer: {type: adamw, lr: 1e-3, weight_decay: 10}
    +     optimizer: {type: adamw, lr: 1e-3, weight_decay: 0.01}
    """
    for optimizer, path, at in list_optimizers(draft):
        lr, decay = getattr(optimizer, "lr", None) or 0.0, getattr(optimizer, "weight_decay", None) or 0.0
        if lr * decay < _SHRINKS_FAST * (1 - 1e-9) or lr > optimizer.usual_lr[1] * _FAR_ABOVE:
            continue
        span = at if path is None else draft.span((*path, "weight_decay"))
        message = f"each step removes lr x weight_decay = {lr * decay:.2g} of every weight"
        yield warning("O019", span, message, "usual values of weight_decay are 0 to 0.3")


def list_optimizers(draft: Draft) -> Iterator[tuple[Optimizer, tuple[str, ...] | None, Span]]:
    """Yield (optimizer, path of its key in the recipe, span) for each optimizer of the recipe. The path is None for an
    optimizer that is set inside a block."""
    if draft.training is not None:
        path: tuple[str, ...] = ("training", "optimizer")
        yield draft.training.optimizer, path, draft.span(path)
    for rule in draft.rules:
        if rule.settings.optimizer is not None:
            path = ("model", "parameters", rule.selector, "optimizer")
            yield rule.settings.optimizer, None if rule.prefix else path, rule.span


def swapped_betas(draft: Draft) -> Iterator[Diagnostic]:
    """swapped-betas (O014)

    Finds: `betas` whose first number is larger than the second.
    Why:   the average of the gradient then changes more slowly than the average of its square: steps follow outdated
           directions, and training becomes unstable. Often the two numbers were swapped.
    Diff:
        training:
    -     optimizer: {type: adam, lr: 1e-3, betas: [0.999, 0.9]}
    +     optimizer: {type: adam, lr: 1e-3, betas: [0.9, 0.999]}
    """
    for optimizer, path, at in list_optimizers(draft):
        betas = getattr(optimizer, "betas", None)
        if betas is None or betas[0] <= betas[1]:
            continue
        span = at if path is None else draft.span((*path, "betas"))
        turned = f"[{betas[1]:g}, {betas[0]:g}]"
        message = f"`betas` of `{optimizer.type}` are {betas[0]:g}, {betas[1]:g}, but the second is usually larger"
        hint = f"write `betas: {turned}`"
        yield warning("O014", span, message, hint, fixes=() if path is None else (Fix(span, turned, safe=False),))


def averaging_optimizer(draft: Draft) -> Iterator[Diagnostic]:
    """averaging-optimizer (O020)

    Finds: an optimizer that keeps an average of the weights (such as `adamw_schedule_free`), together with
           `training.ema`, an `lr_schedule` that is not constant, or a `batch_norm` layer.
    Why:   evaluations and checkpoints use the average of the weights, so a second average, `ema`, has no use. Averaging
           replaces the decay of the learning rate. The running statistics of batch norm belong to the weights before
           averaging, so they would be wrong for the average.
    Diff:
        training:
    -     optimizer: {type: adamw_schedule_free, lr: 0.003}
    +     optimizer: {type: adamw, lr: 0.003}
          lr_schedule: {type: cosine, warmup: 10%}
    """
    training = draft.training
    if training is None:
        return
    kept = next((found for found in list_optimizers(draft) if found[0].averages), None)
    if kept is None:
        return
    optimizer, _, place = kept
    related = (Related(place, "it keeps an average of the weights"),)
    if training.ema is not None:
        message = f"`{optimizer.type}` already evaluates an average of the weights, so `ema` has no use"
        yield error("O020", draft.span("training.ema"), message, "remove `ema`", related)
    if training.lr_schedule is not None and training.lr_schedule.component.type != "constant":
        message = f"`{optimizer.type}` averages the weights instead of lowering the learning rate"
        hint = "write `type: constant`; `warmup` may be kept"
        yield warning("O020", draft.span("training.lr_schedule"), message, hint, related)
    layers = () if draft.scope is None else all_layers(draft.scope)
    if (norm := next((node for node in layers if node.layer.type == "batch_norm"), None)) is not None:
        message = f"`{optimizer.type}` evaluates an average of the weights, for which batch norm has no statistics"
        yield error("O020", norm.span, message, "use group_norm or layer_norm, or another optimizer", related)
