"""exclusive-keys (S006)

Finds: two keys in one section that say the same thing in different ways.
Why:   which of them holds would be a guess.
Bad:
    training:
      gradient_accumulation_steps: 2
      microbatch_size: 10
Good:
    training:
      gradient_accumulation_steps: 2
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.recipe.merge_rules import EXCLUSIVE, Alternatives
from declarative_train.source.node import Mapping, find

_PAIRS = (
    *(pair for pair in EXCLUSIVE if not pair.is_said_by_reader),
    Alternatives(("objective",), "loss", "losses"),  # which merging writes as one
)


def check(tree: Mapping) -> Iterator[Diagnostic]:
    """Over the tree, so that it also holds for a section that cannot be read."""
    for path, either, other, _ in _PAIRS:
        holder = find(tree, path)
        if not isinstance(holder, Mapping):
            continue
        first, second = holder.entry(either), holder.entry(other)
        if first is None or second is None:
            continue
        first, second = sorted((first, second), key=lambda entry: (entry.key.span.line, entry.key.span.column))
        yield error(
            "S006",
            second.key.span,
            f"`{'.'.join(map(str, path))}` has both `{first.name}` and `{second.name}`",
            "keep one of them",
            (Related(first.key.span, f"`{first.name}` is here"),),
        )
