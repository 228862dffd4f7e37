"""deprecated-key (S008)

Finds: a key under a name that it had in an earlier version.
Why:   it still works, but not for ever; `dtrain lint --fix` writes the new name. (In this version no key is
       deprecated: the example is of a language in which `passes` became `epochs`.)
Bad:
    training:
      passes: 5
Good:
    training:
      epochs: 5
"""

from __future__ import annotations

from collections.abc import Iterator

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, warning
from declarative_train.recipe.deprecated import DEPRECATED, lookup
from declarative_train.source.node import Mapping, Path


def check(root: Mapping, path: Path = ()) -> Iterator[Diagnostic]:
    """`root` is the merged tree, whose keys have today's names and their typed text as value."""
    for entry in root if DEPRECATED else ():
        old, key = entry.key.value, entry.key
        found = lookup((*path, old)) if isinstance(old, str) and old != entry.name else None
        if found is not None:
            message = f"`{old}` is called `{found.name}` since dtrain {found.since}"
            fix = Fix(key.span, found.name, safe=True, replaces=str(old))
            yield warning("S008", key.span, message, f"write `{found.name}`", fixes=(fix,))
        if isinstance(entry.value, Mapping):
            yield from check(entry.value, (*path, entry.name))
