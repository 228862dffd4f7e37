"""Recognition of YAML files that are not recipes: other files that dtrain writes, and files of other programs."""

from __future__ import annotations

import os

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.source.checks.yaml_values import not_a_recipe
from declarative_train.source.node import Mapping

MADE: tuple[tuple[frozenset[str], str, str], ...] = (  # (keys of a file, what it is, what to do with it)
    (
        frozenset({"version", "dtrain_version", "fingerprint"}),
        "a plan",
        "`dtrain plan {path}` shows it, `dtrain run {path}` runs it; it was made from {recipe}",
    ),
    (frozenset({"num_ranks", "started_unix_s", "settings"}), "the record of a run", "`dtrain trace {folder}`"),
    (frozenset({"sha256", "fingerprint", "files"}), "a checkpoint's list", "`dtrain predict {folder} INPUT` uses it"),
    (frozenset({"$schema", "$defs"}), "a JSON schema", "it is for editors; pass a recipe: a YAML file"),
)
COMMON = frozenset({"description", "meta", "name", "plugins", "seed", "vars", "version"})  # other files have them too
SLIPS = 0.4  # share of keys that may be similar to a recipe's key by chance: `site_name`, `validation`


def diagnose_other_file(root: Mapping) -> Diagnostic | None:
    """Return a diagnostic that says what kind of file has the content `root`; None if it may be a recipe."""
    if not root.entries:
        return None
    keys = [entry.name for entry in root]
    span = root.entries[0].key.span
    for tell, what, hint in MADE:
        if tell <= set(keys):
            names = {"path": span.path, "folder": os.path.dirname(span.path) or ".", "recipe": _find_recipe_name(root)}
            return not_a_recipe(span, what, hint.format(**names))
    own = [key for key in keys if key not in COMMON]  # a single one may be a misspelt section
    if not own or len(own) < len(keys) < 3 or any(_is_recipe_word(key) for key in own):
        return None
    if len([key for key in own if _is_near(key)]) > len(own) * SLIPS:
        return None
    shown = ", ".join(f"`{key}`" for key in own[:3]) + ", ..." * (len(own) > 3)
    hint = "a recipe has `data`, `model`, `objective` and `training`; `dtrain init` writes a first one"
    return not_a_recipe(span, f"of another program ({shown})", hint)


def _is_recipe_word(key: str) -> bool:
    """Return True if `key` is a sign that a file is a recipe: a top-level key of recipes, or an unknown key for which
    dtrain has a hint, such as a key of another framework."""
    from declarative_train.recipe.hints.aliases import KEYS, NOTES
    from declarative_train.recipe.hints.key_places import home_of
    from declarative_train.recipe.hints.relocated_keys import hint_for
    from declarative_train.recipe.sections.top import Top  # imported here: the merge rules import this module

    if key in Top.model_fields:
        return True
    return key in KEYS or key in NOTES or hint_for(key, "the recipe") is not None or home_of(key) is not None


def _is_near(key: str) -> bool:
    from declarative_train.recipe.sections.top import Top

    return nearest(key, Top.model_fields) is not None


def _find_recipe_name(root: Mapping) -> str:
    """Return the name of the recipe from which the saved plan `root` was compiled, or "a recipe" if the plan does not
    have it.
    """
    texts = root.get("recipe")
    names = [f"`{entry.name}`" for entry in texts] if isinstance(texts, Mapping) else []
    return names[0] if names else "a recipe"
