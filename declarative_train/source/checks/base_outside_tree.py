"""base-outside-tree (M004)

Finds: an `extends` that leaves the folder tree of the recipe: its git repository, else the working directory.
Why:   the recipe cannot be moved, or reviewed, without that file.
Bad:
    # file: tree/recipe.yaml
    extends: ../base.yaml
    # file: base.yaml
    meta: {owner: me}
    # file: tree/.git
    gitdir: ../elsewhere
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def base_outside_tree(span: Span, path: str, root: str) -> Diagnostic:
    return warning("M004", span, f"`{path}` lies outside `{root}`", "copy it into the tree of the recipe")
