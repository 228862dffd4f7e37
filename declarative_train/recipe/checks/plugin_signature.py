"""plugin-signature (X003)

Finds: a layer of a plugin whose `__init__` or `forward` does not say what a recipe must know.
Why:   the arguments of `__init__` are the keys of a node, those of `forward` its ports: each needs a name and a kind.
Bad:
    # whole file
    plugins: [vague.py]   # def forward(self, x, scale=1.0): ...
Good:
    # whole file
    fragment: true        # def __init__(self, scale: float = 1.0): ...
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def plugin_signature(span: Span, problem: str, named: Span, help: str | None = None) -> Diagnostic:
    """`span` lies in the plugin, `named` in the recipe."""
    return error("X003", span, problem, help, (Related(named, "a plugin of this recipe"),))
