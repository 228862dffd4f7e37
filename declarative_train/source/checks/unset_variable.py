"""unset-variable (T003)

Finds: `{{ env.NAME }}` where the environment has no variable NAME.
Why:   an empty path or an empty number would be used instead.
Bad:
    meta:
      owner: "{{ env.DTRAIN_NOT_SET_ANYWHERE }}"
Good:
    meta:
      owner: "{{ env.DTRAIN_NOT_SET_ANYWHERE | default('me') }}"
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import nearest
from declarative_train.terms.span import Span


def unset_variable(span: Span, name: str, known: Iterable[str]) -> Diagnostic:
    by_lower = {each.lower(): each for each in known}
    close = nearest(name, by_lower)
    way_out = f"did you mean `{by_lower[close]}`? or " if close else ""
    way_out += f"set it (`{name}=... dtrain ...`), or give a default: `env.{name} | default('...')`"
    return error("T003", span, f"the environment variable `{name}` is not set", way_out)
