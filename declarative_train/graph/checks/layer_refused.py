"""layer-refused (G002)

Finds: a layer (mostly a plugin's) that torch cannot build or run for what arrives at its inputs.
Why:   it would fail in the first step, on every rank.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 1000000000000000000, input: pixels}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 32, input: pixels}
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span
from declarative_train.terms.tensor_spec import TensorSpec

CODE = "G002"
_MATRICES = re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x(\d+)\)")


def layer_refused(
    span: Span, type: str, specs: Mapping[str, TensorSpec], said: str, made: tuple[Related, ...], precision: str
) -> Diagnostic:
    """`said` by torch, or by the plugin; what we know of it is said in words that hold for every batch."""
    inputs = ", ".join(f"{port} {spec.said(precision)}" for port, spec in specs.items())
    message = f"`{type}` cannot work on {inputs or 'nothing'}"
    if found := _MATRICES.search(said):
        return error(
            CODE, span, f"{message}: it multiplies by a matrix of {counted(int(found[2]), 'row')}", related=made
        )
    if "Overflow when unpacking long" in said or "too large" in said.lower():
        return error(CODE, span, f"{message}: one of its sizes is larger than torch can count", related=made)
    return error(CODE, span, f"{message}; it says: {said}", related=made)
