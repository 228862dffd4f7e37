"""The path of a recipe -> what is wrong with it, and its plan: what the commands and Python both ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from declarative_train import recipe as recipe_room
from declarative_train.app.api.tracer import LateTracer
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.core.run_files import EVENTS, RUN
from declarative_train.core.secrets import names_in
from declarative_train.recipe.load import Loaded

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

STDIN_NAME = "<stdin>"
STATIC = ("B", "E", "H", "K", "M", "O0", "P0", "R0", "S", "T", "U0", "W", "X", "Y")  # codes that --static looks for


class Overrides(NamedTuple):
    """What is merged over a recipe: files (`--with`), then `a.b=1` (`--set`)."""

    with_: Sequence[str] = ()
    set_: Sequence[str] = ()


AS_WRITTEN = Overrides()


class CompileResult(NamedTuple):
    """`note`: why there is no plan, where nothing is wrong."""

    loaded: Loaded
    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...]
    texts: Mapping[str, str] = {}
    note: str = ""


class Linted(NamedTuple):
    diagnostics: list[Diagnostic]
    texts: dict[str, str]


class UnusablePlanError(Exception):
    """A saved plan that cannot be run; the message says why, in lines."""


def read_recipe(
    path: str, overrides: Overrides = AS_WRITTEN, *, texts: Mapping[str, str] | None = None, plugins: bool = False
) -> Loaded:
    """`texts`: instead of those of files, by their paths."""
    return recipe_room.load(path, texts=texts, with_=overrides.with_, set_=overrides.set_, plugins=plugins)


def compile_loaded(loaded: Loaded, meanwhile: Callable[[], object] | None = None) -> CompileResult:
    """Everything that can be known before launch; `plan` is None when there is an error. `meanwhile` is called while
    other processes try a step, where they do."""
    diagnostics = list(loaded.diagnostics)
    plan, note = None, ""
    if loaded.recipe is not None:
        from declarative_train import planner

        plan, more = planner.compile(loaded.recipe, tracer=LateTracer(meanwhile), traces_all=True)
        diagnostics += more
    if any(item.is_error for item in diagnostics):
        plan = None
    elif plan is None and loaded.recipe is not None:
        note = "no plan without what the code of the plugins does: --plugins imports them, and so runs it"
    return CompileResult(loaded, plan, tuple(diagnostics), texts_of(loaded), note)


def lint_recipe(
    path: str,
    overrides: Overrides = AS_WRITTEN,
    *,
    texts: Mapping[str, str] | None = None,
    static: bool = False,
    plugins: bool = False,
) -> Linted:
    """One recipe, without what it asks to ignore. With `static` nothing of torch or of the data is looked at."""
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
        from declarative_train.core.diagnostics.suppress import suppress  # which few recipes need

        diagnostics = suppress(diagnostics, read, checked=STATIC if static else None)
    return Linted(diagnostics, read)


def reported(compiled: CompileResult) -> list[Diagnostic]:
    """The diagnostics without those that the recipe asks to ignore."""
    found = list(compiled.diagnostics)
    if not found:
        return found
    from declarative_train.core.diagnostics.suppress import suppress  # which most recipes do not need

    return list(suppress(found, compiled.texts, checked=()))  # a comment without use is reported by lint


def texts_of(loaded: Loaded) -> dict[str, str]:
    """The texts that the recipe was read from, by the path that spans name them with."""
    return {} if loaded.document is None else dict(loaded.document.texts())


def fragment_in_words(loaded: Loaded) -> str | None:
    """Where nothing is wrong, and still it is not a recipe."""
    is_wrong = any(item.is_error for item in loaded.diagnostics)
    if loaded.recipe is not None or loaded.document is None or is_wrong:
        return None
    path = loaded.document.path
    return f"{path} is a fragment, a part of a recipe: name a recipe and add `--with {path}`"


def missing_file(path: str) -> str | None:
    """Why there is no file to read at `path`; None where there is one."""
    found = Path(path)
    if found.is_file():
        return None
    if found.is_dir() and any((found / name).is_file() for name in (RUN, EVENTS)):
        return f"`{path}` is a run: `dtrain trace` tells of it, `dtrain run RECIPE --resume {path}` goes on with it"
    if found.is_dir():
        return f"`{path}` is a folder: name a recipe in it"
    if found.exists():
        return f"`{path}` is no ordinary file; `-` is standard input"
    if not found.parent.is_dir():
        return f"there is no file or folder `{path}`; there is no folder {found.parent} either"
    beside = [
        each.name for each in found.parent.iterdir() if each.is_dir() or each.suffix in (".yaml", ".yml", ".json")
    ]
    return f"there is no file or folder `{path}`; {did_you_mean(found.name, beside)}"


def read_saved_plan(path: str) -> Plan:
    """A saved plan that still holds. Raises UnusablePlanError."""
    from declarative_train.plan.codec import PlanError, from_json, is_as_signed, sign, unset_variables
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
        why = f"{path} is not a plan that can be run: it was changed after it was made"
        raise UnusablePlanError(f"{why}\nhelp: change the recipe, and {again}")
    if unset := unset_variables(plan):
        names = ", ".join(f"`{name}`" for name in unset)
        raise UnusablePlanError(f"{path} takes values from the environment, where {names} is not set\nhelp: set it")
    if sign(plan).fingerprint != plan.fingerprint:
        names = ", ".join(f"`{name}`" for name in names_in(text))
        why = f"{path} was made with other values in the environment, which decide what it computes: {names}"
        raise UnusablePlanError(f"{why}\nhelp: {again}")
    if changes := staleness(plan):
        why = f"this plan is stale: {path} was compiled from files that have changed"
        raise UnusablePlanError("\n".join([why, *(f"  {change}" for change in changes), f"help: {again}"]))
    return plan
