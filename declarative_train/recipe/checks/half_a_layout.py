"""half-a-layout (P004)

Finds: a number of nodes without the GPUs of each.
Why:   how many ranks there are would be a guess.
Bad:
    layout: {nodes: 2}
Good:
    layout: {nodes: 2, gpus_per_node: 1}
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft
from declarative_train.terms.amounts import counted


def check(draft: Draft) -> Iterator[Diagnostic]:
    layout = draft.layout
    if layout is not None and layout.nodes is not None and layout.gpus_per_node is None and layout.gpus is None:
        yield error(
            "P004",
            draft.span.key("layout.nodes"),
            f"{counted(layout.nodes, 'node')}, but not how many GPUs each has",
            "add `gpus_per_node: 8`",
            rests_on="all files",
        )
