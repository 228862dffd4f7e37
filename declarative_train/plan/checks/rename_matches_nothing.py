"""rename-matches-nothing (U107)

Finds: an entry of `rename` that no name in the file of start values begins with.
Why:   nothing is renamed by it: a slip in the name, or another file than the one it was written for.
Bad:
    model:
      weights: {hidden: {path: hidden.safetensors, rename: {"encoder.": ""}}}
Good:
    model:
      weights: {hidden: {path: hidden.safetensors}}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest
from declarative_train.terms.span import Span


def words(prefix: str, path: str, names: Sequence[str]) -> tuple[str, str]:
    """(what is wrong, a hint); `names` are those in the file. A run says the same of a file that lint could not see."""
    heads = list(dict.fromkeys(name.rpartition(".")[0] + "." for name in names if "." in name))
    close = nearest(prefix, heads)
    listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    way_out = f"did you mean {close}?" if close else f"its names are {listed}" if names else "it holds nothing"
    return f"no name in {path} begins with `{prefix}`: nothing is renamed", way_out


def rename_matches_nothing(span: Span, prefix: str, path: str, names: Sequence[str]) -> Diagnostic:
    return error("U107", span, *words(prefix, path, names))
