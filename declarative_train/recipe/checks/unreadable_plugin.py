"""unreadable-plugin (X002)

Finds: a plugin whose Python cannot be parsed.
Why:   its layers cannot be known, and the run would fail on it.
Bad:
    # whole file
    plugins: [broken.py]
Good:
    # whole file
    fragment: true
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span


def unreadable_plugin(span: Span, problem: str, named: Span) -> Diagnostic:
    """`span` lies in the plugin, `named` in the recipe."""
    return error("X002", span, f"this is not Python: {problem}", None, (Related(named, "a plugin of this recipe"),))
