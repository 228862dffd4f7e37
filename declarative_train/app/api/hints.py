"""Hints on names that the Python API does not have, but Keras, scikit-learn, fastai or pandas have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from declarative_train.core.diagnostics.suggest import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_LOADED = "`dt.load(PATH)` opens a recipe"
_TRAINED = "`dt.load(PATH).run()` trains, and returns the run"
_OPENED = "`dt.open_run(FOLDER)` opens a run, which has `predict`, `evaluate` and `export`"
_WRITTEN = "the command `dtrain init --from DATA --target COLUMN` writes a recipe for a file"
_CHANGED = "a recipe is changed when it is loaded: `dt.load(PATH, set={'training.epochs': 5})`"
_OF_RUN = "`run = recipe.run()`, then `run.predict(ROWS)` or `run.evaluate()`"
_SECTIONS = ("data", "model", "objective", "training", "evaluation", "parallelism", "layout", "checkpoint", "config")
WORDS: dict[str, dict[str, str]] = {  # module or class of the API -> {name in another library: hint}
    "declarative_train": {
        **dict.fromkeys(("read", "open", "read_recipe", "load_recipe", "from_file", "read_yaml"), _LOADED),
        **dict.fromkeys(("fit", "train", "run", "Trainer", "Model", "Learner", "Sequential", "Module"), _TRAINED),
        **dict.fromkeys(("predict", "evaluate", "load_run", "read_run", "load_model", "runs"), _OPENED),
        **dict.fromkeys(("init", "from_df", "create", "read_csv", "Dataset", "DataLoader"), _WRITTEN),
        **dict.fromkeys(("lint", "check", "validate"), "`dt.load(PATH).lint()` returns the mistakes"),
        **dict.fromkeys(("plan", "compile"), "`dt.load(PATH).plan()` shows what would run"),
    },
    "Recipe": {
        **dict.fromkeys(("fit", "train", "start", "fit_one_cycle", "learn"), "`recipe.run()` trains"),
        **dict.fromkeys(("compile", "build", "summary", "describe", "info"), "`recipe.plan()` shows what would run"),
        **dict.fromkeys(("check", "validate"), "`recipe.lint()` returns the mistakes"),
        **dict.fromkeys(("predict", "evaluate", "score", "test", "export"), _OF_RUN),
        **dict.fromkeys((*_SECTIONS, "set", "update", "override", "set_params", "get_params"), _CHANGED),
    },
    "Run": {
        **dict.fromkeys(("score", "test", "validate", "confusion_matrix"), "`run.evaluate()` computes exact metrics"),
        **dict.fromkeys(("predict_proba", "transform"), "`run.predict(ROWS)` returns classes with their probabilities"),
        **dict.fromkeys(
            ("history", "logs", "curves", "losses", "plot"),
            "`run.metrics` has the curves, `run.epochs` a row per epoch",
        ),
        **dict.fromkeys(
            ("save", "save_model", "to_onnx", "dump"), "`run.export('safetensors')`, or `'onnx'`, writes the model"
        ),
        **dict.fromkeys(
            ("model", "net", "network"), "`run.module()` returns the trained model, `run.trained()` with its fields"
        ),
        **dict.fromkeys(
            ("best_score", "best_score_", "accuracy", "loss", "results"), "`run.result` has the last values"
        ),
        **dict.fromkeys(("fit", "train", "resume"), "`recipe.run(resume='auto')` continues the newest run"),
        **dict.fromkeys(("path", "dir", "save_dir", "log_dir"), "its name here is `run.folder`"),
        "status": "its name here is `run.state`",
    },
}


def hint_of_api(word: str) -> str | None:
    """Return a hint that names the counterpart of `word`, a method of another library, in the Python API; None if
    `word` is unknown."""
    return next((words[word] for words in WORDS.values() if word in words), None)


def no_attribute(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for an attribute `name` that `owner`, a module or class of the API, does not have. It contains a
    hint if there is one. `known`: the existing names, of which a similar one is proposed."""
    what = f"`{owner}` has no `{name}`"
    if name.startswith("_"):  # notebooks and `copy` ask for many such names
        return AttributeError(what)
    similar = [each for each in known if not each.startswith("_")]
    hint = WORDS[owner].get(name) or (did_you_mean(name, similar) if similar else None)
    return AttributeError(what if hint is None else f"{what}; help: {hint}")


def explain_keywords(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls `call` and raises TypeError for keyword arguments that `call` does not have. The
    message proposes the argument or the key of the recipe that may be meant."""
    known = inspect.signature(call).parameters

    @wraps(call)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                from declarative_train.recipe.hints.key_places import find_key_path

                path = find_key_path(name)
                value = repr(kwargs[name])
                hint = did_you_mean(name, known) if path is None else f"`dt.load(PATH, set={{'{path}': {value}}})`"
                raise TypeError(f"`{call.__name__}` has no argument `{name}`; help: {hint}")
        return call(*args, **kwargs)

    return checked
