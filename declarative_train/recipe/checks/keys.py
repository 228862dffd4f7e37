"""Messages about keys and their values.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from declarative_train.core.diagnostics.diagnostic import Basis, Diagnostic, Fix, error
from declarative_train.core.diagnostics.suggest import did_you_mean, nearest, suggest_fix
from declarative_train.core.span import Span
from declarative_train.recipe.hints.aliases import hint_on_type, replace_word, translate_type


def unknown_key(
    span: Span,
    name: str,
    where: str,
    known: Iterable[str],
    hint: str | None = None,
    present: Collection[str] = (),
    fixes: tuple[Fix, ...] = (),
    closed: bool = True,
) -> Diagnostic:
    """unknown-key (S001)

    Finds: a key that does not exist in the section, or in the component that `type` selects.
    Why:   if it were ignored, the setting would look active without having an effect.
    Diff:
        training:
    -     epoch: 5
    +     epochs: 5
    """
    # `hint`: what to write instead, with its own `fixes`; without it, the nearest of `known` is suggested.
    # `present`: the keys of the mapping; `closed`: whether the known keys are fixed, not chosen by the user.
    names = list(known)
    if hint is None:
        fixes = suggest_fix(span, name, names, closed=closed, taken=present)
    return error("S001", span, f"{where} has no key `{name}`", hint or did_you_mean(name, names), fixes=fixes)


def missing_key(span: Span, name: str, where: str, wanted: str = "", help: str | None = None) -> Diagnostic:
    """missing-key (S002)

    Finds: a section or component without a required key.
    Why:   no default value would be right for everyone.
    Diff:
        training:
    -     optimizer: {type: sgd}
    +     optimizer: {type: sgd, lr: 0.1}
    """
    return error(
        "S002", span, f"{where} needs `{name}`", help or f"add `{name}: {wanted or '...'}`", rests_on="all files"
    )


def wrong_type(
    span: Span, name: str, found: str, wanted: str, help: str | None = None, fixes: tuple[Fix, ...] = ()
) -> Diagnostic:
    """wrong-type (S003)

    Finds: a value of the wrong type: text instead of a number, a mapping instead of a list.
    Why:   values are never converted silently. `"10"` is text, and so is `yes`.
    Diff:
        training:
    -     global_batch_size: many
    +     global_batch_size: 100
    """
    return error("S003", span, f"`{name}` is {found}, expected {wanted}", help, fixes=fixes)


def wrong_value(span: Span, message: str, help: str | None = None, fixes: tuple[Fix, ...] = ()) -> Diagnostic:
    """wrong-value (S004)

    Finds: a value of the right type that is out of range or not one of the allowed words.
    Why:   torch would reject it after launch, or do something unintended.
    Diff:
        training:
    -     global_batch_size: -1
    +     global_batch_size: 100
    """
    return error("S004", span, message, help, fixes=fixes)


def unknown_type(
    span: Span,
    name: str,
    kind: str,
    known: Iterable[str],
    help: str | None = None,
    own: Collection[str] = (),
    rests_on: Basis | None = None,
) -> Diagnostic:
    """unknown-type (S005)

    Finds: a `type` that is not the name of a component of the expected kind (a layer, a loss, an optimizer).
    Why:   `type` selects the component. The suggestion is the known name that is most similar.
    Diff:
        model:
          graph:
    -       hidden: {type: liner, out_features: 32, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
            logits: {type: linear, out_features: 10}
    """
    # `kind`: layer, loss, optimizer, ...; `own`: those types of `known` that the user defined.
    names = list(known)
    word = translate_type(name, names)
    if word is not None:
        hint, fixes = f"its name here is `{word}`", replace_word(span, name, word)
    else:
        here = hint_on_type(name, names)
        hint = here or help or did_you_mean(name, names)
        fixes = () if here else suggest_fix(span, name, names, closed=nearest(name, names) not in own)
    return error("S005", span, f"there is no {kind} `{name}`", hint, fixes=fixes, rests_on=rests_on)


def newer_dtrain(span: Span, requires: str, version: str) -> Diagnostic:
    """newer-dtrain (S007)

    Finds: a recipe whose `requires` excludes the installed version of dtrain.
    Why:   otherwise keys that only a later version has would be reported as mistakes.
    Bad:
        requires: dtrain>=99.0
    Good:
        requires: dtrain>=0.1
    """
    return error("S007", span, f"the recipe requires {requires}, this is dtrain {version}", "install that version")
