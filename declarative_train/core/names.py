"""Names in recipes: their form, reserved words, and a check for repeated names. Also the names of the files of a
run."""

from __future__ import annotations

import re
from collections.abc import Sequence

NODE_WORDS = ("input", "inputs", "params", "repeat", "when")
"""Keys that every node may have, in addition to the keys of its type."""
RESERVED = ("type", *NODE_WORDS)
"""Names that a field of a layer, and a param or input of a block, must not have."""

RUN = "run.json"
"""File of a run's folder: the name and id of the run, and the folder of its checkpoints if that is elsewhere."""
EVENTS = "events.jsonl"
"""File of a run's folder: the events that the run has reported."""
STRAGGLERS = "stragglers.json"
"""File of a run's folder: the ranks that are slower than the others. Missing if there are none."""

NAME = r"[a-z][a-z0-9_]*"
_NAME = re.compile(NAME, re.ASCII)


def is_name(text: str) -> bool:
    """Return whether a text is a valid name: a lower case letter, then lower case letters, digits and `_`."""
    return _NAME.fullmatch(text) is not None


def check_unique_names(names: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names unchanged (None stays None). Raises ValueError if a name is repeated."""
    again = next((name for position, name in enumerate(names or ()) if name in (names or ())[:position]), None)
    if again is not None:
        raise ValueError(f"`{again}` is listed twice: list it once")
    return names
