"""Top-level keys that are a misspelt section, put under its name: what is wrong inside is reported in the same pass,
and nothing is reported missing. The misspelt key itself is reported as any unknown one."""

from __future__ import annotations

from declarative_train.core.diagnostics.suggest import nearest
from declarative_train.recipe.merge_rules import MERGE_RULES
from declarative_train.recipe.sections.top import SECTIONS, Top, keys_of
from declarative_train.source.node import Entry, Mapping, Scalar


def with_meant_sections(root: Mapping) -> Mapping:
    """`root`, where each unknown key that holds keys of the section it is nearest to stands under that section."""
    taken = {entry.name for entry in root}
    entries: list[Entry] = []
    for entry in root:
        name = None if entry.name in Top.model_fields else nearest(entry.name, Top.model_fields)
        if name is None or name in taken or not _is_of(name, entry):
            entries.append(entry)
            continue
        taken.add(name)
        entries.append(Entry(Scalar(name, name, entry.key.span), MERGE_RULES.expand(entry.value, (name,))))
    return root.with_entries(entries)


def _is_of(section: str, entry: Entry) -> bool:
    """Whether half of the keys or more are of the section."""
    if section not in SECTIONS or not isinstance(entry.value, Mapping):
        return False
    known = keys_of(section)
    keys = [each.name in known for each in entry.value]
    return bool(keys) and 2 * sum(keys) >= len(keys)


def is_misspelt(section: str, root: Mapping) -> bool:
    """Whether a key that nobody knows is nearest to it."""
    unknown = (entry.name for entry in root if entry.name not in Top.model_fields)
    return any(nearest(name, Top.model_fields) == section for name in unknown)
