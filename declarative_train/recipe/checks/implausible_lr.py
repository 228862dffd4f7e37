"""implausible-lr (O013)

Finds: a learning rate far outside of what people train with by that optimizer, or one of 0.
Why:   with ten times the largest usual rate a run diverges in its first steps or learns nothing; with a thousandth of
       the smallest, or with 0, its parameters hardly move, and it ends without an error.
Bad:
    training:
      optimizer: {type: adam, lr: 10}
Good:
    training:
      optimizer: {type: adam, lr: 1e-3}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.components.component import Optimizer
from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.recipe.draft import Draft
from declarative_train.terms.span import Span

_FAR_ABOVE, _FAR_BELOW = 10, 1e-3


def check(draft: Draft) -> Iterator[Diagnostic]:
    for optimizer, path, at in optimizers_of(draft):
        lr = getattr(optimizer, "lr", None)
        low, high = optimizer.usual_lr
        usual = f"the usual ones are {low:g} to {high:g}"
        span = at if path is None else draft.span((*path, "lr"))
        if lr == 0:
            yield warning("O013", span, "an lr of 0: no step changes a parameter", usual)
        elif lr is not None and not low * _FAR_BELOW <= lr <= high * _FAR_ABOVE:
            far = "above" if lr > high else "below"
            yield warning("O013", span, f"an lr of {lr:g} is far {far} what `{optimizer.type}` trains with", usual)


def optimizers_of(draft: Draft) -> Iterator[tuple[Optimizer, tuple[str, ...] | None, Span]]:
    """Every optimizer that the recipe names, with its path where it stands in the recipe's own tree, and a place."""
    if draft.training is not None:
        path: tuple[str, ...] = ("training", "optimizer")
        yield draft.training.optimizer, path, draft.span(path)
    for rule in draft.rules:
        if rule.settings.optimizer is not None:
            path = ("model", "parameters", rule.selector, "optimizer")
            yield rule.settings.optimizer, None if rule.prefix else path, rule.span
