"""idle-gpus (P003)

Finds: `single` on more than one GPU.
Why:   one process on one device leaves the others idle, and somebody waits for them.
Bad:
    parallelism: single
    layout: {gpus: 2}
Good:
    parallelism: single
    layout: {gpus: 1}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.sections.parallelism import Single


def check(draft: Draft) -> Iterator[Diagnostic]:
    layout = draft.layout
    if not isinstance(draft.parallelism, Single) or layout is None or layout.num_gpus == 1:
        return
    key = "layout.gpus" if layout.gpus is not None else "layout.gpus_per_node"
    asked = draft.is_written("parallelism")
    related = (Related(draft.span("parallelism.mode"), "single is asked for here"),) if asked else ()
    found = "single" if asked else "parallelism is left out: single"
    yield error(
        "P003",
        draft.span(key),
        f"{found} uses 1 of {layout.num_gpus} GPUs",
        "set parallelism to ddp or fsdp, or layout.gpus to 1",
        related,
    )
