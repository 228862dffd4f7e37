"""Messages about plugins.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Iterable

from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, warning
from declarative_train.core.diagnostics.suggest import hint_on_path, nearest
from declarative_train.core.span import Span


def missing_plugin(span: Span, path: str, reason: str, others: Iterable[str]) -> Diagnostic:
    """missing-plugin (X001)

    Finds: a plugin file that does not exist or cannot be read.
    Why:   the types that it defines would be unknown in the recipe.
    Bad:
        plugins: [my_layer.py]
    Good:
        data:
          shuffle: true
    """
    # `others`: the Python files in its folder.
    close = nearest(path.replace("\\", "/").rpartition("/")[2], others)
    hint = f"did you mean `{close}`?" if close else hint_on_path(span, path)
    return error("X001", span, f"cannot read the plugin {path}: {reason}", hint)


def unreadable_plugin(span: Span, problem: str, named: Span) -> Diagnostic:
    """unreadable-plugin (X002)

    Finds: a plugin file that is not valid Python.
    Why:   the types that it defines would be unknown, and the run would fail.
    Diff:
        # whole file
    -   plugins: [broken.py]
    +   fragment: true
    """
    # `span` is in the plugin, `named` in the recipe.
    return error("X002", span, f"this is not Python: {problem}", None, (Related(named, "a plugin of this recipe"),))


def plugin_signature(span: Span, problem: str, named: Span, help: str | None = None) -> Diagnostic:
    """plugin-signature (X003)

    Finds: a class in a plugin that lacks a required method, or has a method whose arguments cannot be used in a
           recipe.
    Why:   the arguments of `__init__` are the keys of a node, and those of `forward` are its ports, so each needs a
           name and a type.
    Diff:
        # whole file
    -   plugins: [vague.py]   # def forward(self, x, scale=1.0): ...
    +   fragment: true        # def __init__(self, scale: float = 1.0): ...
    """
    # `span` is in the plugin, `named` in the recipe.
    return error("X003", span, problem, help, (Related(named, "a plugin of this recipe"),))


def plugin_without_layers(span: Span, path: str) -> Diagnostic:
    """plugin-without-layers (X004)

    Finds: a plugin file without a class that a recipe can name.
    Why:   such a plugin has no effect. The base class of a class decides what it is: `torch.nn.Module` makes it a
           layer, `torch.optim.Optimizer` an optimizer, `torch.utils.data.Dataset` a source of data, and a class of
           `declarative_train.plugins` anything else (loss, metric, lr schedule, sink, source, field, transform).
    Diff:
        # whole file
    -   plugins: [empty.py]
    +   fragment: true
    """
    hint = "the base of a public class decides its kind: `torch.nn.Module` is a layer (docs/plugins.md)"
    return warning("X004", span, f"{path} has no class that a recipe can name", hint)


def plugin_fails(span: Span, path: str, problem: str) -> Diagnostic:
    """plugin-fails (X005)

    Finds: a plugin that raises an exception when it is imported. Plugins are only imported in `run` and with
           `--plugins`.
    Why:   the run would fail.
    Diff:
        # whole file
    -   plugins: [raises.py]
    +   fragment: true
    """
    return error("X005", span, f"importing {path} fails: {problem}")
