"""Resources of this machine that a process may use, and the installation of dtrain, on every operating system."""

from __future__ import annotations

import errno
import os
import sys
from importlib.util import find_spec
from pathlib import Path

SINK_PACKAGES = ("mlflow", "wandb")
"""Sinks that need a package of the same name, which is also the name of the extra that installs it."""

NEEDED_TORCH = "2.13"
"""Version of torch for what the oldest allowed version cannot do."""

UNINSTALLED = "unknown"
"""Version of a dtrain that runs from its source tree without an installation."""


def num_cores() -> int:
    """Return the number of cores that this process may use. A container or a scheduler may allow fewer than the machine
    has; macOS does not report such a limit."""
    return len(own_cores())


def own_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def most_open_files() -> int:
    """Return how many files this process may have open."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def shortage(error: BaseException) -> str | None:
    """Return one line about the limit of the machine that caused an exception, or None for any other exception. The
    loader of shared libraries and torch set no `errno`, so their messages are searched."""
    number, text = getattr(error, "errno", None), str(error).lower()
    is_in_words = isinstance(error, ImportError | RuntimeError)
    if number in (errno.EMFILE, errno.ENFILE) or (is_in_words and "too many open files" in text):
        return "this process cannot open more files; help: raise `ulimit -n`"
    no_room = any(words in text for words in ("failed to map segment", "t allocate memory", "std::bad_alloc"))
    if isinstance(error, MemoryError) or number == errno.ENOMEM or (is_in_words and no_room):
        return "this process cannot allocate more memory; help: raise `ulimit -v`, or use a machine with more memory"
    return None


def own_version() -> str:
    """Return the installed version of dtrain, or `UNINSTALLED`. Reading it takes a while."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("declarative_train")
    except PackageNotFoundError:
        return UNINSTALLED


def is_older_torch() -> bool:
    """Return whether the installed torch, which is not imported for this, is older than `NEEDED_TORCH`."""
    from importlib.metadata import version

    found, needed = ([int(part) for part in text.split(".")[:2]] for text in (version("torch"), NEEDED_TORCH))
    return found < needed


def own_command() -> str:
    """Return the command that starts this dtrain: `dtrain` if the shell finds this one, else the path of its script (in
    an environment that is not activated) or the interpreter with the module."""
    if _is_first_on_path("dtrain"):
        return "dtrain"
    script = Path(sys.executable).parent / "dtrain"
    return _from_here(script) if script.exists() else f"{_from_here(Path(sys.executable))} -m declarative_train"


def install(extra: str) -> str:
    """Return the command that installs one of our extras into the environment of this dtrain."""
    pip = "pip" if _is_first_on_path("pip") else f"{_from_here(Path(sys.executable))} -m pip"
    return f"{pip} install 'declarative_train[{extra}]'"


def extra_for(package: str) -> str | None:
    """Return the command that installs a package by our extra of its name, or None if the package is installed. Imports
    nothing."""
    return None if find_spec(package) is not None else install(package)


def _is_first_on_path(name: str) -> bool:
    """Return whether the shell finds the program of this environment first."""
    from shutil import which

    found = which(name)
    return found is not None and Path(found).resolve().parent == Path(sys.executable).parent


def _from_here(path: Path) -> str:
    """Return a path quoted for the shell, relative if it is below the working directory."""
    from shlex import quote

    return quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
