"""Plugins of a recipe: the components that the plugin files define, and errors in the files.

The files are parsed. They are imported, which runs their code, only on request; without an import the output shapes of
their layers are unknown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pydantic import create_model

from declarative_train.components.component import Component, Layer
from declarative_train.components.layers import LAYERS
from declarative_train.components.plugin_components import read_plugin_components
from declarative_train.components.plugin_file import PluginProblem, import_plugin
from declarative_train.components.plugin_sinks import FoundSink, read_sinks
from declarative_train.components.plugins import read_plugin
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import reserved_name, shadowed_type
from declarative_train.recipe.checks.plugins import (
    missing_plugin,
    plugin_fails,
    plugin_signature,
    plugin_without_layers,
    unreadable_plugin,
)
from declarative_train.recipe.model.blocks import list_shipped
from declarative_train.recipe.model.references import REUSE
from declarative_train.recipe.sections.logging import PluginSink, Sinks
from declarative_train.recipe.validate import table_of_word
from declarative_train.source.document import SourceFile


@dataclass(slots=True)
class Plugins:
    """Components that plugin files define: `layers` and `sinks` by name, `components` of all other kinds by kind and
    name. `files`: the plugin files with their texts, for messages. `is_whole`: every file could be read and parsed."""

    layers: dict[str, type[Layer]] = field(default_factory=dict)
    sinks: dict[str, type[PluginSink]] = field(default_factory=dict)
    components: dict[str, dict[str, type[Component]]] = field(default_factory=dict)
    files: list[SourceFile] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    is_whole: bool = True


def read_plugins(paths: Iterable[tuple[str, Span]], *, may_import: bool) -> Plugins:
    """Return the components of plugin files. `paths`: absolute path of each file, and its span in the recipe.
    `may_import`: whether to import the files too, which runs their code.
    """
    plugins = Plugins()
    for path, span in paths:
        _read(path, span, may_import, plugins)
    return plugins


def _read(path: str, span: Span, may_import: bool, plugins: Plugins) -> None:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as problem:
        folder = os.path.dirname(path)
        others = [name for name in os.listdir(folder) if name.endswith(".py")] if os.path.isdir(folder) else []
        plugins.is_whole = False
        plugins.diagnostics.append(missing_plugin(span, os.path.relpath(path), _reason(problem), others))
        return
    shown = os.path.relpath(path)
    plugins.files.append(SourceFile(shown, text, "plugin"))
    layers, of_layers = read_plugin(path, text, may_import=may_import)
    sinks, of_sinks = read_sinks(path, text)
    components, of_components = read_plugin_components(path, text, may_import=may_import)
    problems = (*of_layers, *of_sinks, *of_components)
    plugins.diagnostics += [_diagnostic(problem, shown, span) for problem in problems]
    plugins.is_whole &= not any(problem.kind == "syntax" for problem in problems)
    if not layers and not sinks and not any(components.values()) and not problems:
        plugins.diagnostics.append(plugin_without_layers(span, shown))
    for name, found in layers.items():
        taken = _find_taken(name, plugins)
        if taken is not None:
            at = Span(shown, found.line, found.column, found.line, found.end_column)
            plugins.diagnostics.append(shadowed_type(at, name, "plugin's layer", taken))
        else:
            plugins.layers[name] = found.layer
    for name, sink in sinks.items():
        taken = "a sink" if name in Sinks.model_fields else "another plugin's sink" if name in plugins.sinks else None
        if taken is not None:
            at = Span(shown, sink.line, sink.column, sink.line, sink.end_column)
            plugins.diagnostics.append(shadowed_type(at, name, "plugin's sink", taken))
        else:
            plugins.sinks[name] = _section(path, sink)
    for word, each in components.items():
        known = plugins.components.setdefault(word, {})
        for name, component in each.items():
            taken = f"another plugin's {word}" if name in known else None
            if name in table_of_word(word):
                taken = f"{'an' if word[0] in 'aeiou' else 'a'} {word}"
            if taken is not None:
                at = Span(shown, component.line, component.column, component.line, component.end_column)
                plugins.diagnostics.append(shadowed_type(at, name, f"plugin's {word}", taken))
            else:
                known[name] = component.component
    if may_import and (layers or sinks or any(components.values())) and not problems:
        try:
            import_plugin(path)
        except Exception as problem:  # the user's code may raise anything
            plugins.diagnostics.append(plugin_fails(span, shown, f"{type(problem).__name__}: {_reason(problem)}"))


def _section(path: str, sink: FoundSink) -> type[PluginSink]:
    made = create_model(sink.class_name, __base__=PluginSink, __module__=__name__, **dict[str, Any](sink.fields))
    made.__doc__ = sink.doc
    made.plugin_path, made.plugin_class = path, sink.class_name
    return made


def _find_taken(name: str, plugins: Plugins) -> str | None:
    if name in LAYERS:
        return "a layer"
    if name in list_shipped():
        return "a shipped block"
    if name == REUSE:
        return "a reserved word"
    return "another plugin's layer" if name in plugins.layers else None


def _diagnostic(problem: PluginProblem, path: str, named: Span) -> Diagnostic:
    span = Span(path, problem.line, problem.column, problem.line, problem.end_column)
    if problem.kind == "syntax":
        return unreadable_plugin(span, problem.message, named)
    if problem.kind == "reserved":
        return reserved_name(span, problem.name, problem.message)
    return plugin_signature(span, problem.message, named, problem.help)


def _reason(problem: BaseException) -> str:
    text = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    return str(text).splitlines()[0]
