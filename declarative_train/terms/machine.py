"""What this machine gives to a process, on every system that Python runs on."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

SINK_PACKAGES = ("mlflow", "wandb")
"""Sinks that need a package of the same name, which is also the name of our extra."""


def num_cores() -> int:
    """That this process may use: a container or a scheduler may give fewer than there are. macOS cannot tell."""
    return len(own_cores())


def own_cores() -> list[int]:
    """Their numbers."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def own_command() -> str:
    """How the reader of this terminal can start dtrain: `dtrain` where that is this one, else the path of its script
    (in an environment that is not activated) or the interpreter with the module."""
    from shlex import quote
    from shutil import which

    beside = Path(sys.executable).parent
    found = which("dtrain")
    if found is not None and Path(found).resolve().parent == beside:
        return "dtrain"
    script = beside / "dtrain"
    if not script.exists():
        return f"{quote(sys.executable)} -m declarative_train"
    below_here = script.is_relative_to(Path.cwd())
    return quote(str(script.relative_to(Path.cwd()) if below_here else script))


def extra_for(package: str) -> str | None:
    """How to install a package that is not here, by our extra of its name; None where it is. Imports nothing."""
    return None if find_spec(package) is not None else f"pip install 'declarative_train[{package}]'"
