"""What this machine gives to a process, on every system that Python runs on."""

from __future__ import annotations

import errno
import os
import sys
from importlib.util import find_spec
from pathlib import Path

SINK_PACKAGES = ("mlflow", "wandb")
"""Sinks that need a package of the same name, which is also the name of our extra."""

UNINSTALLED = "unknown"
"""The version of a dtrain that runs from its source tree and was never installed."""


def num_cores() -> int:
    """That this process may use: a container or a scheduler may give fewer than there are. macOS cannot tell."""
    return len(own_cores())


def own_cores() -> list[int]:
    """Their numbers."""
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
    """Return which limit of the machine an exception is about, in a line; None for any other exception. The loader of
    shared libraries and torch give no number of their errors."""
    number, text = getattr(error, "errno", None), str(error).lower()
    is_in_words = isinstance(error, ImportError | RuntimeError)
    if number in (errno.EMFILE, errno.ENFILE) or (is_in_words and "too many open files" in text):
        return "this process may open no more files; help: raise `ulimit -n`"
    no_room = any(words in text for words in ("failed to map segment", "t allocate memory", "std::bad_alloc"))
    if isinstance(error, MemoryError) or number == errno.ENOMEM or (is_in_words and no_room):
        return "this process gets no more memory; help: raise `ulimit -v`, or take a machine with more of it"
    return None


def own_version() -> str:
    """Of this dtrain, read from its installation, which takes a while; `UNINSTALLED` where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("declarative_train")
    except PackageNotFoundError:
        return UNINSTALLED


def own_command() -> str:
    """How the reader of this terminal can start dtrain: `dtrain` where that is this one, else the path of its script
    (in an environment that is not activated) or the interpreter with the module."""
    if _is_first_on_path("dtrain"):
        return "dtrain"
    script = Path(sys.executable).parent / "dtrain"
    return _from_here(script) if script.exists() else f"{_from_here(Path(sys.executable))} -m declarative_train"


def install(extra: str) -> str:
    """How to install one of our extras beside this dtrain: into another environment it would be of no use."""
    pip = "pip" if _is_first_on_path("pip") else f"{_from_here(Path(sys.executable))} -m pip"
    return f"{pip} install 'declarative_train[{extra}]'"


def extra_for(package: str) -> str | None:
    """How to install a package that is not here, by our extra of its name; None where it is. Imports nothing."""
    return None if find_spec(package) is not None else install(package)


def _is_first_on_path(name: str) -> bool:
    """The shell would take the one of the environment that this process is of."""
    from shutil import which

    found = which(name)
    return found is not None and Path(found).resolve().parent == Path(sys.executable).parent


def _from_here(path: Path) -> str:
    """A word of a command line, short where it lies below the working directory."""
    from shlex import quote

    return quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
