"""Messages on templates.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, error
from declarative_train.core.diagnostics.suggest import did_you_mean, nearest, suggest_fix
from declarative_train.core.span import Span


def template_syntax(span: Span, message: str, help: str | None = None) -> Diagnostic:
    """template-syntax (T001)

    Finds: a template whose Jinja expression syntax is wrong.
    Why:   a template that cannot be parsed cannot be replaced by its value.
    Diff:
        vars: {width: 32}
        meta:
    -     half: "{{ vars.width // }}"
    +     half: "{{ vars.width // 2 }}"
    """
    return error("T001", span, message, help)


_SECTIONS = (
    "checkpoint",
    "data",
    "evaluation",
    "layout",
    "logging",
    "model",
    "objective",
    "parallelism",
    "sweep",
    "training",
)
_WHERE = {
    **dict.fromkeys(_SECTIONS, "templates cannot read sections: put the value into `vars`, and use it in both places"),
    "params": "`params` are defined only inside a block",
    "index": "`index` is defined only on a node with `repeat`",
    "vars": "the recipe has no section `vars`",
}


def undefined_name(
    span: Span, name: str, owner: str | None, known: Iterable[str], holder: str | None = None
) -> Diagnostic:
    """undefined-name (T002)

    Finds: a template that uses a name which is not defined where the template is, or an entry that `vars`, `params` or
           another mapping does not have.
    Why:   Jinja renders an undefined name as an empty text, so the mistake would go unnoticed.
    Diff:
        vars: {width: 32}
        meta:
    -     size: "{{ vars.widht }}"
    +     size: "{{ vars.width }}"
    """
    # `owner`: the value that lacks the name (`vars`), None for a bare name; `holder`: the value that has it.
    names = [str(each) for each in known]
    if owner is None:
        hint = _WHERE.get(name) if name not in names else None
        if name == "vars" and "params" in names:
            hint = "a block sees only its `params`: pass the value as a param"
        elif holder is not None:
            hint = f"did you mean `{holder}.{name}`?"
        message = f"`{name}` is not defined here"
        if hint is None and name not in names:
            return error("T002", span, message, did_you_mean(name, names), fixes=suggest_fix(span, name, names))
        return error("T002", span, message, hint)
    hint = did_you_mean(name, names) if names else "add it to the section `vars`" if owner == "`vars`" else None
    return error("T002", span, f"{owner} has no `{name}`", hint, fixes=suggest_fix(span, name, names))


def unset_variable(span: Span, name: str, known: Iterable[str]) -> Diagnostic:
    """unset-variable (T003)

    Finds: a template `{{ env.NAME }}` without a default, if the environment has no variable NAME.
    Why:   the value would be an empty text: for example, a path that names no file.
    Diff:
        meta:
    -     owner: "{{ env.DTRAIN_NOT_SET_ANYWHERE }}"
    +     owner: "{{ env.DTRAIN_NOT_SET_ANYWHERE | default('me') }}"
    """
    by_lower = {each.lower(): each for each in known}
    close = nearest(name, by_lower)
    hint = f"did you mean `{by_lower[close]}`? or " if close else ""
    hint += f"set it (`{name}=... dtrain ...`), or set a default: `env.{name} | default('...')`"
    return error("T003", span, f"the environment variable `{name}` is not set", hint)


def circular_vars(span: Span, chain: Sequence[str]) -> Diagnostic:
    """circular-vars (T004)

    Finds: an entry of `vars` that refers to itself, directly or through other entries.
    Why:   each of these entries needs the value of another one first, so none of them has a value.
    Diff:
        vars:
          width: "{{ vars.heads * 64 }}"
    -     heads: "{{ vars.width // 64 }}"
    +     heads: 4
    """
    way = " -> ".join(f"`{name}`" for name in chain)
    return error(
        "T004", span, f"`vars` has values that refer to each other in a circle: {way}", "replace one of them by a value"
    )


def template_too_costly(span: Span, message: str) -> Diagnostic:
    """template-too-costly (T005)

    Finds: a template that would need much time or memory, such as a huge power, a text repeated many times or a long
           range.
    Why:   a recipe may come from somebody else, so reading it must not be able to block a machine.
    Diff:
        meta:
    -     size: "{{ 10 ** 10 ** 10 }}"
    +     size: "{{ 10 ** 10 }}"
    """
    return error("T005", span, message, "write the value itself")


def template_failed(span: Span, message: str) -> Diagnostic:
    """template-failed (T006)

    Finds: a template that raises an error while it is rendered, such as a division by zero, text plus a number, or an
           index out of range.
    Why:   a template that fails has no value.
    Diff:
        vars: {sizes: [1, 2]}
        meta:
    -     size: "{{ vars.sizes + 1 }}"
    +     size: "{{ vars.sizes[0] + 1 }}"
    """
    return error("T006", span, f"this template fails: {message}")


def template_in_key(span: Span, text: str) -> Diagnostic:
    """template-in-key (T007)

    Finds: a key that contains a template.
    Why:   `extends`, `--set` and messages refer to keys by their names, so each name must be written out in the file.
    Diff:
        meta:
    -     "run_{{ vars.width }}": 1
    +     run_32: 1
    """
    return error(
        "T007", span, f"the key `{text}` contains a template; keys cannot be templates", "write the name itself"
    )


def template_forbidden(span: Span, message: str, help: str | None = None) -> Diagnostic:
    """template-forbidden (T008)

    Finds: a part of Jinja that recipes do not support, such as macros, includes, blocks, `%` formatting, or methods
           that are not safe.
    Why:   a template only computes a value. It must finish in a short time, and must not read files or run code.
    Diff:
        meta:
    -     name: "{% include 'secrets.txt' %}"
    +     name: "{{ 'a' if true else 'b' }}"
    """
    return error("T008", span, message, help)


def template_without_value(span: Span, kind: str) -> Diagnostic:
    """template-without-value (T009)

    Finds: a template whose result is not a value that a recipe can have, such as a function or a method.
    Why:   the values of a recipe are numbers, texts, booleans, null, lists and mappings.
    Diff:
        meta:
    -     steps: "{{ range }}"
    +     steps: "{{ range(3) }}"
    """
    return error(
        "T009",
        span,
        f"this template gives {kind}, which is not a value of a recipe",
        "call it, or write the value that is meant",
    )
