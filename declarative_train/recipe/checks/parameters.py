"""Messages about settings of parameters, and about start values from files.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified
from declarative_train.core.diagnostics.suggest import did_you_mean, nearest, suggest_fix
from declarative_train.core.span import Span


def bad_selector(span: Span, selector: str, problem: str) -> Diagnostic:
    """bad-selector (U001)

    Finds: a key of `model.parameters` that is not a valid selector (a name of parameters or nodes, with wildcards).
    Why:   a misread selector would apply settings to the wrong parameters.
    Diff:
        model:
          parameters:
    -       hidden.{3..0}: {frozen: true}
    +       hidden.*: {frozen: true}
    """
    return error("U001", span, f"`{selector}` is not a selector: {problem}")


def selector_matches_nothing(span: Span, selector: str, parameters: Sequence[str]) -> Diagnostic:
    """selector-matches-nothing (U002)

    Finds: an entry of `model.parameters` that matches no parameter of the model.
    Why:   without this error, an encoder that should be frozen, for example, would be trained without notice.
    Diff:
        model:
          parameters:
    -       hiden: {frozen: true}
    +       hidden: {frozen: true}
    """
    # `parameters`: the names that the selector is matched with.
    inside = next((name for name in parameters if f".{selector}." in f"{name}."), None)
    if "." in selector and inside is not None:
        way = inside[: inside.index(f".{selector}") + 1 + len(selector)]
        hint = f"a selector with a dot starts at the root: `{way}`"
        return error("U002", span, f"no parameter matches `{selector}`", hint)
    known = _list_names(parameters) if "." in selector else {part for name in parameters for part in name.split(".")}
    close = nearest(selector, known)
    message = f"no parameter matches `{selector}`"
    if close is not None:
        return error("U002", span, message, f"did you mean `{close}`?", fixes=suggest_fix(span, selector, known))
    shown = ", ".join(parameters[:6]) + (f", and {len(parameters) - 6} more" if len(parameters) > 6 else "")
    return error("U002", span, message, f"the parameters are {shown}" if parameters else "there are no parameters here")


def _list_names(parameters: Sequence[str]) -> set[str]:
    """Return the names of the parameters, and the paths of the nodes that contain them. `parameters`: dotted names,
    such as `hidden.weight`."""
    parts = [name.split(".") for name in parameters]
    return {".".join(way[:end]) for way in parts for end in range(1, len(way) + 1)}


def newest_run(span: Span, path: str) -> Diagnostic:
    """newest-run (U003)

    Finds: a path in `model.weights` that names the folder of a run on another machine, such as a URL. Such weights are
           valid, but cannot be read for the checks before a run.
    Why:   their shapes, statistics and class numbers are checked only when the run starts.
    Diff:
        model:
    -     weights: s3://bucket/runs/digits
    +     weights: {hidden: {path: hidden.safetensors}}
    """
    message = f"`{path}` is not on this machine: its weights and statistics are checked when the run starts"
    return unverified("U003", span, message)


def unknown_weights_node(span: Span, name: str, known: Iterable[str]) -> Diagnostic:
    """unknown-weights-node (U004)

    Finds: an entry of `model.weights` for a node that the model does not have.
    Why:   nothing would be loaded, and the parameters would have random start values.
    Diff:
        model:
    -     weights: {hiden: {path: hidden.safetensors}}
    +     weights: {hidden: {path: hidden.safetensors}}
    """
    names = list(known)
    message = f"there is no node `{name}` to load weights into"
    return error("U004", span, message, did_you_mean(name, names), fixes=suggest_fix(span, name, names))
