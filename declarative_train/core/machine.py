"""Resources of this machine that a process may use, and the installed version of dtrain, on every operating system."""

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
    """Return the number of CPU cores that this process may use. A container or a scheduler may allow fewer cores than
    the machine has. (macOS does not report such a limit.)"""
    return len(own_cores())


def own_cores() -> list[int]:
    """Return the ids of the CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def most_open_files() -> int:
    """Return the maximum number of files that this process may have open."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def shortage(error: BaseException) -> str | None:
    """Return one line about the limit of the machine (memory, disk, open files) that caused an exception, or None if no
    limit did. The texts of exceptions are searched too, because torch and the loader of shared libraries set no
    `errno`."""
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
    """Return whether the installed torch is older than `NEEDED_TORCH`. torch is not imported."""
    from importlib.metadata import version

    found, needed = ([int(part) for part in text.split(".")[:2]] for text in (version("torch"), NEEDED_TORCH))
    return found < needed


def own_command() -> str:
    """Return the command that starts this installation of dtrain. It is `dtrain` if the shell finds this installation
    by that name, otherwise the path of its script. Without a script, it is the Python interpreter with `-m
    declarative_train`."""
    if _is_first_on_path("dtrain"):
        return "dtrain"
    script = Path(sys.executable).parent / "dtrain"
    return _from_here(script) if script.exists() else f"{_from_here(Path(sys.executable))} -m declarative_train"


def install(extra: str) -> str:
    """Return the shell command that installs an optional dependency group of dtrain (`extra`) into this environment."""
    pip = "pip" if _is_first_on_path("pip") else f"{_from_here(Path(sys.executable))} -m pip"
    return f"{pip} install 'declarative_train[{extra}]'"


def extra_for(package: str) -> str | None:
    """Return the shell command that installs `package`, or None if it is already installed. The command installs dtrain
    with the optional dependency group that has the name of the package. The package is not imported."""
    return None if find_spec(package) is not None else install(package)


def _is_first_on_path(name: str) -> bool:
    """Return whether the shell would find the program `name` of this Python environment before any other."""
    from shutil import which

    found = which(name)
    return found is not None and Path(found).resolve().parent == Path(sys.executable).parent


def _from_here(path: Path) -> str:
    """Return a path quoted for the shell. A path below the working directory becomes relative to it."""
    from shlex import quote

    return quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
