"""reuse-does-not-fit (G007)

Finds: a node that is called again with inputs that it was not made for.
Why:   a `reuse` keeps the parameters, and with them the sizes, of its node.
Bad:
    model:
      graph:
        first: {type: linear, out_features: 32, input: pixels}
        again: {type: reuse, node: first, input: first}
        hidden: {input: again}
Good:
    model:
      graph:
        first: {type: linear, out_features: 64, input: pixels}
        again: {type: reuse, node: first, input: first}
        hidden: {input: again}
"""

from __future__ import annotations

from collections.abc import Mapping

from declarative_train.diagnostics.diagnostic import Diagnostic, Related, error
from declarative_train.terms.span import Span
from declarative_train.terms.tensor_spec import TensorSpec


def reuse_does_not_fit(
    span: Span,
    target: str,
    target_span: Span,
    found: Mapping[str, TensorSpec],
    made_for: Mapping[str, TensorSpec],
    said: str | None = None,
) -> Diagnostic:
    """`said` is the reason where there is one besides the shapes."""
    message = f"`{target}` was made for {_shown(made_for)}, here it gets {_shown(found)}"
    made = Related(target_span, f"`{target}` stands here")
    return error("G007", span, message if said is None else f"{message}: {said}", related=(made,))


def reuse_before_target(span: Span, name: str, target: str, target_span: Span) -> Diagnostic:
    message = f"`{name}` calls `{target}` again, and `{target}` waits for its result"
    made = Related(target_span, f"`{target}` stands here")
    return error("G007", span, message, f"give `{target}` another input", related=(made,))


def _shown(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{port} {spec}" for port, spec in specs.items()) or "nothing"
