"""unusable-folder (O030)

Finds: a `logging.dir` that cannot be made: a file stands where a folder has to be, or one above it is not to be written
       in.
Why:   the run ends before it begins.
Bad:
    logging: {dir: base.yaml/runs}
Good:
    logging: {dir: runs}
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.recipe.draft import Draft


def check(draft: Draft) -> Iterator[Diagnostic]:
    if draft.logging is None:
        return
    folder = Path(draft.logging.dir).expanduser().absolute()
    there = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), folder)
    reason = None
    if not there.is_dir():
        reason = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | os.X_OK):
        reason = f"{there} cannot be written in"
    if reason is not None:
        yield error("O030", draft.span("logging.dir"), f"`{draft.logging.dir}` cannot hold runs: {reason}")
