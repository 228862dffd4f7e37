"""wrong-extends (M003)

Finds: an `extends` that is neither a path nor a list of paths, holds a template, or comes from `--set`.
Why:   files are merged before templates are rendered and before `--set` is applied.
Bad:
    # file: recipe.yaml
    extends: {base: base.yaml}
Good:
    meta: {owner: me}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def wrong_extends(span: Span, found: str) -> Diagnostic:
    return error(
        "M003", span, f"`extends` is {found}; it takes a path, or a list of paths", "write `extends: base.yaml`"
    )


def template_in_extends(span: Span) -> Diagnostic:
    return error(
        "M003",
        span,
        "`extends` cannot be a template: files are merged before templates are rendered",
        "name the file, and choose another one with `--with`",
    )


def extends_by_option(span: Span) -> Diagnostic:
    return error("M003", span, "`extends` cannot be set: files are merged before `--set`", "use `--with FILE`")
