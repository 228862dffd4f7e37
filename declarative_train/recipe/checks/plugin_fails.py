"""plugin-fails (X005)

Finds: a plugin that raises when it is imported (only where that is asked for: `--plugins`, `run`).
Why:   the run would fail on it.
Bad:
    # whole file
    plugins: [raises.py]
Good:
    # whole file
    fragment: true
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def plugin_fails(span: Span, path: str, problem: str) -> Diagnostic:
    return error("X005", span, f"importing {path} fails: {problem}")
