"""shapes-unknown (G005)

Finds: a node of a plugin, whose shapes only its code can tell.
Why:   a recipe is checked without running its code; what stands behind such a node is not checked either.
Bad:
    plugins: [my_layers.py]
    model:
      graph:
        hidden: {type: my_layer, input: pixels}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, unverified
from declarative_train.terms.span import Span


def shapes_unknown(span: Span, type: str) -> Diagnostic:
    return unverified(
        "G005",
        span,
        f"the shapes of `{type}` and of what stands behind it are not known: it is a plugin's",
        "`--plugins` imports the recipe's plugins and checks the whole graph",
    )
