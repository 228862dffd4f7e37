"""hardware-elsewhere (P016)

Finds: `layout.hardware` that is not of the kind that `layout.device` insists on.
Why:   the plan would estimate for a device that this run never uses.
Bad:
    layout: {gpus: 1, device: cpu, hardware: h100-sxm}
Good:
    layout: {gpus: 1, device: auto, hardware: h100-sxm}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, warning
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    layout = draft.layout
    if layout is None or layout.hardware is None or layout.device == "auto":
        return
    from declarative_train.components.hardware import HARDWARE  # which few recipes name

    if layout.hardware in HARDWARE and (layout.hardware == "cpu") != (layout.device == "cpu"):
        yield warning(
            "P016",
            draft.span("layout.hardware"),
            f"the estimates are for {layout.hardware}, and the run is on {layout.device}",
            "leave layout.hardware out, or set layout.device to auto",
            (Related(draft.span("layout.device"), f"{layout.device} is asked for here"),),
        )
