"""plugin-without-layers (X004)

Finds: a plugin file without a single layer.
Why:   it does nothing; a layer is a public class at the top of the file with a `forward`.
Bad:
    # whole file
    plugins: [empty.py]
Good:
    # whole file
    fragment: true
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def plugin_without_layers(span: Span, path: str) -> Diagnostic:
    way_out = "a layer is a public class at the top of the file with a `forward`"
    return warning("X004", span, f"{path} has no layer", way_out)
