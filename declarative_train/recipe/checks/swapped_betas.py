"""swapped-betas (O014)

Finds: `betas` of which the first is larger than the second.
Why:   the average of the gradient then remembers longer than that of its square: the steps go on in a direction that
       is long gone, and training becomes unstable. It is nearly always the pair the wrong way round.
Bad:
    training:
      optimizer: {type: adam, lr: 1e-3, betas: [0.999, 0.9]}
Good:
    training:
      optimizer: {type: adam, lr: 1e-3, betas: [0.9, 0.999]}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, warning
from declarative_train.recipe.checks.implausible_lr import optimizers_of
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    for optimizer, path, at in optimizers_of(draft):
        betas = getattr(optimizer, "betas", None)
        if betas is None or betas[0] <= betas[1]:
            continue
        span = at if path is None else draft.span((*path, "betas"))
        turned = f"[{betas[1]:g}, {betas[0]:g}]"
        yield warning(
            "O014",
            span,
            f"`betas` of `{optimizer.type}` are {betas[0]:g}, {betas[1]:g}: the second is the larger one as a rule",
            f"write `betas: {turned}`",
            fixes=() if path is None else (Fix(span, turned, safe=False),),
        )
