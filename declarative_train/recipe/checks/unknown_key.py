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

from collections.abc import Collection, Iterable

from declarative_train.diagnostics.diagnostic import Diagnostic, Fix, error
from declarative_train.diagnostics.suggest import did_you_mean, respelt
from declarative_train.terms.span import Span


def unknown_key(
    span: Span,
    name: str,
    where: str,
    known: Iterable[str],
    home: str | None = None,
    beside: Collection[str] = (),
    fixes: tuple[Fix, ...] = (),
    closed: bool = True,
) -> Diagnostic:
    """`home`: where a key of that name does belong, with its own `fixes`; `beside`: the keys that are there already;
    `closed`: the keys are the language's, not names that a user gave."""
    names = list(known)
    if home is None:
        fixes = respelt(span, name, names, closed=closed, taken=beside)
    return error("S001", span, f"{where} has no key `{name}`", home or did_you_mean(name, names), fixes=fixes)
