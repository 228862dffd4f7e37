"""Misspelt names of sections: an unknown top-level key is read as the section with a similar name. So errors inside are
reported too, and the section is not reported as missing. The key itself is reported as unknown."""

from __future__ import annotations

from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.recipe.merge_rules import MERGE_RULES
from declarative_train.recipe.sections.top import SECTIONS, Top, keys_of
from declarative_train.source.node import Entry, Mapping, Scalar


def rename_misspelt_sections(root: Mapping) -> Mapping:
    """Return the recipe `root` with the correct names of misspelt sections. A key counts as a misspelt section if its
    name is similar and at least half of the keys inside belong to that section.
    """
    taken = {entry.name for entry in root}
    entries: list[Entry] = []
    for entry in root:
        name = None if entry.name in Top.model_fields else nearest(entry.name, Top.model_fields)
        if name is None or name in taken or not _has_keys_of(name, entry):
            entries.append(entry)
            continue
        taken.add(name)
        entries.append(Entry(Scalar(name, name, entry.key.span), MERGE_RULES.expand(entry.value, (name,))))
    return root.with_entries(entries)


def _has_keys_of(section: str, entry: Entry) -> bool:
    """Return whether at least half of the keys inside `entry` are keys of the section named `section`."""
    if section not in SECTIONS or not isinstance(entry.value, Mapping):
        return False
    known = keys_of(section)
    keys = [each.name in known for each in entry.value]
    return bool(keys) and 2 * sum(keys) >= len(keys)


def is_misspelt(section: str, root: Mapping) -> bool:
    """Return whether `root`, the recipe, has an unknown top-level key whose name is similar to `section`."""
    unknown = (entry.name for entry in root if entry.name not in Top.model_fields)
    return any(nearest(name, Top.model_fields) == section for name in unknown)
