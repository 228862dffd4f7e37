"""gpu-numbers-on-cpu (P011)

Finds: GPUs picked by number, with `device: cpu`.
Why:   the numbers do nothing there; only how many there are counts.
Bad:
    layout: {gpus: [0, 3], device: cpu}
Good:
    layout: {gpus: 2, device: cpu}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, warning
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    layout = draft.layout
    if layout is not None and layout.device == "cpu" and isinstance(layout.gpus, tuple):
        span, number = draft.span("layout.gpus"), len(layout.gpus)
        message = "GPU numbers do nothing on the CPU"
        yield warning("P011", span, message, f"write `gpus: {number}`", fixes=(Fix(span, str(number), safe=False),))
