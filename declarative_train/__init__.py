"""Declarative training: a YAML recipe, checked, planned and run.

    import declarative_train as dt

    recipe = dt.load("recipe.yaml", set={"training.epochs": 5})
    recipe.lint()
    run = recipe.run()
    run.metrics
    run.predict("new.csv")

Everything is imported when it is asked for: the import itself takes a millisecond.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from declarative_train.app.api.diagnostics import Diagnostics
    from declarative_train.app.api.errors import DtrainError
    from declarative_train.app.api.plan_view import PlanView, load_plan
    from declarative_train.app.api.recipe import Recipe, load, loads
    from declarative_train.app.api.run import Run, open_run
    from declarative_train.core.diagnostics.diagnostic import Diagnostic
    from declarative_train.tools.fits.answer import Fits
    from declarative_train.tools.fits.fits import fits

    __version__: str

__all__ = [
    "Diagnostic",
    "Diagnostics",
    "DtrainError",
    "Fits",
    "PlanView",
    "Recipe",
    "Run",
    "__version__",
    "fits",
    "load",
    "load_plan",
    "loads",
    "open_run",
]

_PLACES = {
    "Diagnostic": "core.diagnostics.diagnostic",
    "Diagnostics": "app.api.diagnostics",
    "DtrainError": "app.api.errors",
    "Fits": "tools.fits.answer",
    "PlanView": "app.api.plan_view",
    "Recipe": "app.api.recipe",
    "Run": "app.api.run",
    "fits": "tools.fits.fits",
    "load": "app.api.recipe",
    "load_plan": "app.api.plan_view",
    "loads": "app.api.recipe",
    "open_run": "app.api.run",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from declarative_train.core.machine import own_version

        found: Any = own_version()
    elif name in _PLACES:
        found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    else:
        from declarative_train.app.api.hints import no_attribute

        # `from declarative_train import recipe` asks here first, and then imports the package of that name
        raise no_attribute(__name__, name, __all__ if find_spec(f"{__name__}.{name}") is None else ())
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
