"""missing-plugin (X001)

Finds: a plugin file that is not there, or that cannot be read.
Why:   its layers would be unknown types everywhere.
Bad:
    plugins: [my_layer.py]
Good:
    data:
      shuffle: true
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest, paths_start
from declarative_train.terms.span import Span


def missing_plugin(span: Span, path: str, reason: str, beside: Iterable[str]) -> Diagnostic:
    """`beside`: the Python files in its folder."""
    close = nearest(path.replace("\\", "/").rpartition("/")[2], beside)
    way_out = f"did you mean `{close}`?" if close else paths_start(span)
    return error("X001", span, f"cannot read the plugin {path}: {reason}", way_out)
