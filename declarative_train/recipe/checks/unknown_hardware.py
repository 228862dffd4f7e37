"""unknown-hardware (P015)

Finds: a device in `layout.hardware` that no figures are known of.
Why:   the plan's times, and what `auto` takes, would be those of nothing.
Bad:
    layout: {gpus: 1, hardware: h100-smx}
Good:
    layout: {gpus: 1, hardware: h100-sxm}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    layout = draft.layout
    if layout is None or layout.hardware is None:
        return
    from declarative_train.components.hardware import HARDWARE  # which few recipes name

    if layout.hardware in HARDWARE:
        return
    name = layout.hardware
    like = [known for known in HARDWARE if known.startswith(name.lower().replace("_", "-"))]
    yield error(
        "P015",
        draft.span("layout.hardware"),
        f"there are no figures of a device called `{name}`",
        f"it is one of {', '.join(like)}" if len(like) > 1 else did_you_mean(name, HARDWARE),
        fixes=() if len(like) > 1 else respelt(draft.span("layout.hardware"), name, HARDWARE, closed=True),
    )
