"""unknown-key (S001)

Finds: a key that the section, or the component named by `type`, does not have.
Why:   a key that is ignored is a setting that somebody believes to be on.
Bad:
    training:
      epoch: 5
Good:
    training:
      epochs: 5
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.diagnostics.suggest import did_you_mean
from declarative_train.terms.span import Span


def unknown_key(span: Span, name: str, where: str, known: Iterable[str], home: str | None = None) -> Diagnostic:
    """`home`: where a key of that name does belong."""
    return error("S001", span, f"{where} has no key `{name}`", home or did_you_mean(name, known))
