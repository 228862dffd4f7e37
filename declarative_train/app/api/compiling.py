"""Linting and compiling of the recipe at a path, for the commands and for the Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from declarative_train import recipe as recipe_room
from declarative_train.app.api.tracer import LateTracer
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.core.names import EVENTS, RUN
from declarative_train.core.secrets import names_in
from declarative_train.recipe.load import Loaded

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.planner.estimate.tracing import Tracer

STDIN_NAME = "<stdin>"
STATIC = ("B", "E", "H", "K", "M", "O0", "P0", "R0", "S", "T", "U0", "W", "X", "Y")  # codes that --static can find


class Overrides(NamedTuple):
    """Changes that are merged over a recipe: first files (`--with`), then single values `a.b=1` (`--set`)."""

    with_: Sequence[str] = ()
    set_: Sequence[str] = ()


AS_WRITTEN = Overrides()


class CompileResult(NamedTuple):
    """Result of compiling a recipe. `plan`: None if no plan was made. `note`: the reason why no plan was made, if it is
    not an error of the recipe, else "". `texts`: {path: content} of the recipe's files."""

    loaded: Loaded
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    texts: Mapping[str, str] = {}
    note: str = ""


class Linted(NamedTuple):
    diagnostics: list[Diagnostic]
    texts: dict[str, str]


class UnusablePlanError(Exception):
    """Error: a saved plan cannot be run. The message has the reason."""


def read_recipe(
    path: str, overrides: Overrides = AS_WRITTEN, *, texts: Mapping[str, str] | None = None, plugins: bool = False
) -> Loaded:
    """Read and check the recipe at a path. `texts`: {path: content of the file}, used in place of the files on disk.
    `plugins`: import the recipe's plugins, which runs their code."""
    return recipe_room.load(path, texts=texts, with_=overrides.with_, set_=overrides.set_, plugins=plugins)


def compile_loaded(loaded: Loaded, tracer: Tracer | None = None) -> CompileResult:
    """Compile a recipe that was read. Return its plan, or None if there is an error, and the diagnostics of all checks
    that are possible before a run. `tracer`: predicts memory; calls that share one tracer reuse its traces."""
    diagnostics = list(loaded.diagnostics)
    plan, note = None, ""
    if loaded.recipe is not None:
        from declarative_train import planner

        plan, more = planner.compile(loaded.recipe, tracer=tracer or LateTracer(), traces_all=True)
        diagnostics += more
    if any(item.is_error for item in diagnostics):
        plan = None
    elif plan is None and loaded.recipe is not None:
        note = "a plan needs the code of the plugins: --plugins imports them, which runs it"
    return CompileResult(loaded, plan, tuple(diagnostics), texts_of(loaded), note)


def lint_recipe(
    path: str,
    overrides: Overrides = AS_WRITTEN,
    *,
    texts: Mapping[str, str] | None = None,
    static: bool = False,
    plugins: bool = False,
) -> Linted:
    """Return the diagnostics of a recipe, except those that comments in the recipe ignore. `texts`: {path: content of
    the file}, used in place of the files on disk. `static`: make only the checks that need neither torch nor the data.
    `plugins`: import the recipe's plugins, which runs their code."""
    loaded = read_recipe(path, overrides, texts=texts, plugins=plugins)
    diagnostics = list(loaded.diagnostics)
    if loaded.recipe is not None and not static:
        from declarative_train import planner

        diagnostics += planner.compile(loaded.recipe, offline=True, tracer=LateTracer())[1]
    read = texts_of(loaded)
    if any(item.fixes for item in diagnostics):
        from declarative_train.core.diagnostics.fixes import locate_fixes

        diagnostics = locate_fixes(diagnostics, read)
    if any("dtrain:" in text for text in read.values()):
        from declarative_train.core.diagnostics.suppress import suppress  # imported here, because few recipes need it

        diagnostics = suppress(diagnostics, read, checked=STATIC if static else None)
    return Linted(diagnostics, read)


def without_ignored(compiled: CompileResult) -> list[Diagnostic]:
    """Return the diagnostics, except those that comments in the recipe ignore."""
    found = list(compiled.diagnostics)
    if not found:
        return found
    from declarative_train.core.diagnostics.suppress import suppress  # most recipes do not need it

    return list(suppress(found, compiled.texts, checked=()))  # `checked=()`: `lint` reports comments without effect


def texts_of(loaded: Loaded) -> dict[str, str]:
    """Return {path: text} of the files from which the recipe was read. The places (spans) of diagnostics refer to these
    paths."""
    return {} if loaded.document is None else dict(loaded.document.texts())


def fragment_in_words(loaded: Loaded) -> str | None:
    """Return a message if the file is a fragment without mistakes, otherwise None. (A fragment is a part of a recipe
    that is merged into others.)
    """
    is_wrong = any(item.is_error for item in loaded.diagnostics)
    if loaded.recipe is not None or loaded.document is None or is_wrong:
        return None
    path = loaded.document.path
    return f"{path} is a fragment, a part of a recipe: give a recipe and add `--with {path}`"


def missing_file(path: str) -> str | None:
    """Return a message if there is no readable file at `path`; otherwise None."""
    found = Path(path)
    if found.is_file():
        return None
    if found.is_dir() and any((found / name).is_file() for name in (RUN, EVENTS)):
        return f"`{path}` is a run: `dtrain trace` shows it, `dtrain run RECIPE --resume {path}` resumes it"
    if found.is_dir():
        return f"`{path}` is a folder: give a recipe in it"
    if found.exists():
        return f"`{path}` is not a regular file; `-` is standard input"
    if not found.parent.is_dir():
        return f"there is no file or folder `{path}`; there is no folder {found.parent} either"
    siblings = [
        each.name for each in found.parent.iterdir() if each.is_dir() or each.suffix in (".yaml", ".yml", ".json")
    ]
    return f"there is no file or folder `{path}`; {did_you_mean(found.name, siblings)}"


def read_saved_plan(path: str) -> Plan:
    """Return the plan in a file. Raises UnusablePlanError if it cannot be run, for example because a file of its recipe
    has changed."""
    from declarative_train.plan.codec import PlanError, find_unset_variables, from_json, is_as_signed, sign
    from declarative_train.plan.file_fingerprints import staleness

    again = "compile it again with `dtrain plan RECIPE -o PLAN.json`"
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
        plan = from_json(text)
    except OSError as error:
        raise UnusablePlanError(f"cannot read {path}: {error.strerror}") from None
    except PlanError as error:
        why = f"{path} is not a plan that can be run: {error}"
        raise UnusablePlanError(f"{why}\nhelp: {again}; a recipe is a YAML file") from None
    if not is_as_signed(text):
        why = f"{path} is not a plan that can be run: it was changed after it was saved"
        raise UnusablePlanError(f"{why}\nhelp: change the recipe, and {again}")
    if unset := find_unset_variables(plan):
        names = ", ".join(f"`{name}`" for name in unset)
        raise UnusablePlanError(f"{path} uses values of the environment, in which {names} is not set\nhelp: set it")
    if sign(plan).fingerprint != plan.fingerprint:
        why = f"{path} was compiled by another version of dtrain, whose fingerprint covers other values"
        if names := ", ".join(f"`{name}`" for name in names_in(text)):
            why = f"{path} was compiled with other values of the environment that change what it computes: {names}"
        raise UnusablePlanError(f"{why}\nhelp: {again}")
    if changes := staleness(plan):
        why = f"this plan is stale: {path} was compiled from files that have changed"
        raise UnusablePlanError("\n".join([why, *(f"  {change}" for change in changes), f"help: {again}"]))
    return plan
