"""undefined-name (T002)

Finds: a name in a template that is not defined where the template stands.
Why:   an undefined name would render as nothing.
Bad:
    vars: {width: 32}
    meta:
      size: "{{ vars.widht }}"
Good:
    vars: {width: 32}
    meta:
      size: "{{ vars.width }}"
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span

_SECTIONS = ("checkpoint", "data", "evaluation", "layout", "logging", "model", "objective", "parallelism", "training")
_WHERE = {
    **dict.fromkeys(_SECTIONS, "a template sees no section: put the value into `vars`, and use it in both places"),
    "params": "`params` are known inside a block only",
    "index": "`index` is known on a node with `repeat` only",
    "vars": "the recipe has no section `vars`",
}


def undefined_name(
    span: Span, name: str, owner: str | None, known: Iterable[str], holder: str | None = None
) -> Diagnostic:
    """`owner`: what the name was looked for in (`vars`), None for a name by itself; `holder`: what does have it."""
    names = [str(each) for each in known]
    if owner is None:
        way_out = _WHERE.get(name) if name not in names else None
        if name == "vars" and "params" in names:
            way_out = "a block sees its `params` only: hand the value on as one"
        elif holder is not None:
            way_out = f"did you mean `{holder}.{name}`?"
        message = f"`{name}` is not known here"
        if way_out is None and name not in names:
            return error("T002", span, message, did_you_mean(name, names), fixes=respelt(span, name, names))
        return error("T002", span, message, way_out)
    way_out = did_you_mean(name, names) if names else "add it to the section `vars`" if owner == "`vars`" else None
    return error("T002", span, f"{owner} has no `{name}`", way_out, fixes=respelt(span, name, names))
