"""repeated-gpu (P005)

Finds: a GPU that is named twice.
Why:   two ranks on one device share its memory and its time, and NCCL refuses it.
Bad:
    layout: {gpus: [0, 0]}
Good:
    layout: {gpus: [0, 1]}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    layout = draft.layout
    if layout is None or not isinstance(layout.gpus, tuple):
        return
    for position, gpu in enumerate(layout.gpus):
        first = layout.gpus.index(gpu)
        if first < position:
            yield error(
                "P005",
                draft.span(("layout", "gpus", position)),
                f"GPU {gpu} is named twice",
                None,
                (Related(draft.span(("layout", "gpus", first)), "first here"),),
            )
