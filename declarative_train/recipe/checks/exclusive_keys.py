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
from declarative_train.source.node import Mapping, find

ALTERNATIVES: tuple[tuple[str, str, str], ...] = (  # section, either, or
    ("training", "epochs", "steps"),
    ("training", "gradient_accumulation_steps", "microbatch_size"),
    ("layout", "gpus", "nodes"),
    ("layout", "gpus", "gpus_per_node"),
    ("objective", "loss", "losses"),
)


def check(tree: Mapping) -> Iterator[Diagnostic]:
    """Over the tree, so that it also holds for a section that cannot be read."""
    for section, either, other in ALTERNATIVES:
        holder = find(tree, (section,))
        if not isinstance(holder, Mapping):
            continue
        first, second = holder.entry(either), holder.entry(other)
        if first is None or second is None:
            continue
        first, second = sorted((first, second), key=lambda entry: (entry.key.span.line, entry.key.span.column))
        yield error(
            "S006",
            second.key.span,
            f"`{section}` has both `{first.name}` and `{second.name}`",
            "keep one of them",
            (Related(first.key.span, f"`{first.name}` is here"),),
        )
