"""Messages on `extends`, `--set` and what they merge.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.diagnostics.suggest import nearest, suggest_fix
from declarative_train.core.span import Span
from declarative_train.source.node import Entry


def missing_base(span: Span, typed: str, path: str, reason: str, siblings: Iterable[str]) -> Diagnostic:
    """missing-base (M001)

    Finds: an `extends` or a `--with` that names a file which does not exist or cannot be read. Also an `extends` that
           names a file outside the folder tree of the recipe (see M004) which is not a recipe.
    Why:   the settings of that file would be missing from the recipe.
    Bad:
        # file: recipe.yaml
        extends: nowhere.yaml
    Good:
        meta: {owner: me}
    """
    # `siblings`: the YAML files in that folder, as a user would type them.
    names = list(siblings)
    close = nearest(typed, names)
    hint = f"did you mean `{close}`?" if close else None
    if hint is None and path != typed:
        hint = f"`{path}` does not exist: the path is relative to the file that contains it"
    return error("M001", span, f"`{typed}` {reason}", hint, fixes=suggest_fix(span, typed, names))


def circular_extends(span: Span, chain: Sequence[str]) -> Diagnostic:
    """circular-extends (M002)

    Finds: a file that extends itself, directly or through other files, or a recipe that reads more than 100 files
           through `extends`.
    Why:   files are merged one after another, beginning with a file that extends no other one. In a circle there is no
           such file.
    Bad:
        # file: recipe.yaml
        extends: recipe.yaml
    Good:
        meta: {owner: me}
    """
    # `chain`: the files of the cycle; the last one is the first.
    way = " -> ".join(f"`{path}`" for path in chain)
    return error("M002", span, f"`extends` is circular: {way}", "remove one of these `extends`")


def extends_too_long(span: Span, limit: int) -> Diagnostic:
    return error("M002", span, f"more than {limit} files are read through `extends`", "extend fewer files")


def wrong_extends(span: Span, found: str) -> Diagnostic:
    """wrong-extends (M003)

    Finds: an `extends` that is neither a path nor a list of paths, that contains a template, or that is set with
           `--set`.
    Why:   files are merged before templates are rendered and before `--set` is applied, so the path must be written in
           the file.
    Bad:
        # file: recipe.yaml
        extends: {base: base.yaml}
    Good:
        meta: {owner: me}
    """
    return error(
        "M003", span, f"`extends` is {found}, expected a path or a list of paths", "write `extends: base.yaml`"
    )


def template_in_extends(span: Span) -> Diagnostic:
    message = "`extends` cannot be a template: files are merged before templates are rendered"
    return error("M003", span, message, "write the path, and use `--with` for alternatives")


def extends_by_option(span: Span) -> Diagnostic:
    return error("M003", span, "`--set` cannot change `extends`: files are merged first", "use `--with FILE`")


def base_outside_tree(span: Span, path: str, root: str) -> Diagnostic:
    """base-outside-tree (M004)

    Finds: an `extends` that names a file outside the folder tree of the recipe. The tree is the git repository of the
           recipe. If there is none, it is the working directory if the recipe is inside it, else the recipe's folder.
    Why:   if the recipe is copied or sent to another machine, this file is left behind, and the recipe cannot be read.
    Diff:
    -   # file: tree/recipe.yaml
    -   extends: ../base.yaml
    -   # file: base.yaml
        meta: {owner: me}
    -   # file: tree/.git
    -   gitdir: ../elsewhere
    """
    return warning(
        "M004", span, f"`{path}` is outside `{root}`, the folder tree of the recipe", "copy the file into it"
    )


def null_removes_nothing(entry: Entry, where: str, known: Iterable[str], own_keys: Collection[str] = ()) -> Diagnostic:
    """null-removes-nothing (M005)

    Finds: a `null` for a key that no base and no earlier file or option has.
    Why:   `null` removes a key of a base. If there is no such key, its name is usually misspelt, and the key that was
           meant keeps its value.
    Bad:
        training:
          clip_grad_normm: null
    Good:
        meta: {owner: me}
    """
    # `known`: the keys that could be removed; `own_keys`: the keys of the file with the null.
    name, keys = entry.name, list(known)
    close, fixes = nearest(name, keys), suggest_fix(entry.key.span, name, keys, taken=own_keys)
    hint = f"did you mean `{close}`?" if close else "remove the key: `null` only removes a key of a base"
    message = f"`{name}: null` removes nothing: {where} has no such key"
    return error("M005", entry.value.span, message, hint, fixes=fixes, rests_on="all files")


def wrong_set(span: Span, message: str, help: str) -> Diagnostic:
    """wrong-set (M006)

    Finds: a `--set` that is not `PATH=VALUE`, or whose path has an empty part (`training..steps`).
    Why:   the option does not say which key gets which value.
    Bad:
        # options: --set training.steps
    Good:
        # options: --set training.steps=10
    """
    return error("M006", span, message, help)


def set_inside_list(span: Span, name: str, there: Span) -> Diagnostic:
    """set-inside-list (M007)

    Finds: a `--set` with the position of a list's item in its path (`meta.sizes.0`), or a mapping of such positions in
           a derived recipe.
    Why:   a list can only be replaced as a whole. If an item is inserted, the positions shift, and the option would
           change another item.
    Bad:
        # options: --set meta.sizes=[1,2] --set meta.sizes.0=5
    Good:
        # options: --set meta.sizes=[1,2] --set meta.sizes=[5,2]
    """
    message = f"`{name}` is a list; lists can only be replaced as a whole"
    return error("M007", span, message, f"set the whole list: `{name}=[...]`", (Related(there, "the list"),))
