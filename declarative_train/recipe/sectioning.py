"""Division of a rendered recipe into sections, each read on its own, so that an error in one does not hide errors in
others."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from declarative_train.components.component import Layer
from declarative_train.components.fields import FIELDS
from declarative_train.components.layers import LAYERS
from declarative_train.core.diagnostics.diagnostic import Basis, Diagnostic, Related
from declarative_train.core.packs import find_row
from declarative_train.core.span import Span
from declarative_train.recipe.checks.blocks import published_model
from declarative_train.recipe.checks.keys import missing_key, unknown_type, wrong_type, wrong_value
from declarative_train.recipe.checks.parameters import bad_selector, newest_run, unknown_weights_node
from declarative_train.recipe.draft import Draft
from declarative_train.recipe.hints.aliases import letters
from declarative_train.recipe.hints.key_places import home_in_axes, home_of
from declarative_train.recipe.hints.misspelt_sections import is_misspelt
from declarative_train.recipe.hints.relocated_keys import MODES, hint_for
from declarative_train.recipe.merge_rules import add_default_types, axes_of_word
from declarative_train.recipe.model.expand import Expanded, expand
from declarative_train.recipe.model.fragments import check_nodes
from declarative_train.recipe.model.selectors import ParameterRule, compile_selector, parse_rules
from declarative_train.recipe.model.tree import PublishedError, Scope
from declarative_train.recipe.model.walk import Frame, all_nodes
from declarative_train.recipe.paths import Paths
from declarative_train.recipe.reading import read
from declarative_train.recipe.recipe import Model, Recipe, Spans, Weights
from declarative_train.recipe.sections.logging import PluginSink, logging_with
from declarative_train.recipe.sections.model import ModelSection
from declarative_train.recipe.sections.objective import ObjectiveSection
from declarative_train.recipe.sections.parallelism import WORDS, Axes, of_word
from declarative_train.recipe.sections.section import Section, models_in
from declarative_train.recipe.sections.top import OF_PACKS, REQUIRED, SECTIONS, Head, Top, keys_of
from declarative_train.recipe.validate import Added, adding, validate
from declarative_train.source.document import Document, SourceFile
from declarative_train.source.node import Mapping, Node, Scalar, describe_node, find
from declarative_train.source.template import Templates


@dataclass(slots=True)
class Sectioning:
    """Reader of the sections of a rendered recipe. Call `read` first; then `draft` and `recipe` return the results.

    `names`: variables for templates. `may_import`: whether plugins may be imported, which runs their code. The fields
    after `may_import` are set by `read`. `unread`: parts of the recipe that could not be read. The caller drops each
    diagnostic that depends on such a part.
    """

    document: Document
    tree: Mapping
    templates: Templates
    names: MappingABC[str, object]
    may_import: bool = False

    layers: MappingABC[str, type[Layer]] = field(default_factory=lambda: LAYERS)
    sinks: MappingABC[str, type[PluginSink]] = field(default_factory=dict)
    files: tuple[SourceFile, ...] = ()
    sections: dict[str, Any] = field(default_factory=dict)
    head: Head | None = None
    expanded: Expanded | None = None
    rules: tuple[ParameterRule, ...] = ()
    weights: tuple[Weights, ...] = ()
    diagnostics: list[Diagnostic] = field(default_factory=list)
    unread: set[Basis] = field(default_factory=set)

    @property
    def is_part(self) -> bool:
        """True if missing keys may be in other files, because the recipe is a fragment, a file could not be read, or
        the key `extends` is misspelt."""
        said = self.tree.get("fragment")
        if isinstance(said, Scalar) and said.value is True:
            return True
        return not self.document.complete or is_misspelt("extends", self.document.root)

    def read(self) -> None:
        if self.is_part:
            self.unread.add("all files")
        if not isinstance(find(self.tree, ("data", "fields")), Mapping):  # already reported
            self.unread.add("data.fields")
        self._head()
        with adding(self._plugins()):
            self._sections()

    def _sections(self) -> None:
        tree = add_default_types(self.tree)
        for name in sorted(SECTIONS, key=lambda name: name == "model"):  # needs the other sections
            entry = tree.entry(name)
            if entry is None:
                self._absent(name)
            elif name == "model":
                self._model(entry.value, entry.key.span)
            elif name == "parallelism":
                self._parallelism(entry.value, entry.key.span)
            else:
                paths, node = Paths.of(self.document), entry.value
                node = paths.in_sources(node) if name == "data" else paths.in_layout(node) if name == "layout" else node
                kind: type[Section] = next(models_in(Top.model_fields[name].annotation))  # type: ignore[assignment]
                if name == "logging" and self.sinks:
                    kind = logging_with(self.sinks)
                self._take(name, *read(kind, node, name, entry.key.span, home_of))

    def _take(self, name: str, section: object, found: list[Diagnostic]) -> None:
        self.diagnostics += found
        if section is not None:
            self.sections[name] = section

    def _head(self) -> None:
        """Read the top-level keys that are not sections, and report unknown keys. A misspelt section is read under its
        correct name, but its key is reported.
        """
        known = {entry.name for entry in self.document.root} & set(Top.model_fields)
        outdented = set(_find_outdented(self.document.root))
        unknown = (entry for entry in self.document.root if entry.name not in known and entry.name not in outdented)
        head, found = validate(
            Head,
            self.tree.with_entries((*self.tree.only(known), *unknown)),
            where="the recipe",
            at=self._start(),
            leave=SECTIONS,
            extra_known=SECTIONS,
            elsewhere=home_of,
        )
        self.diagnostics += found
        self.head = head

    def _absent(self, name: str) -> None:
        if self.is_part:
            return
        if name in REQUIRED and not is_misspelt(name, self.document.root):
            removed = next((gone.by for gone in self.document.dropped if gone.path == (name,)), None)
            self.diagnostics.append(missing_key(removed or self._start(), name, "the recipe"))
        elif name not in REQUIRED:
            self.sections[name] = Top.model_fields[name].get_default(call_default_factory=True)

    def _start(self) -> Span:
        return Spans(self.tree).key(())

    def _parallelism(self, node: Node, at: Span) -> None:
        """Read the section `parallelism`: a word, or a mapping of axes."""
        if isinstance(node, Scalar) and isinstance(node.value, str):
            if node.value not in WORDS:
                hint = MODES.get(letters(node.text))
                self.diagnostics.append(unknown_type(node.span, node.text, "mode of parallelism", WORDS, hint))
                return
            section = of_word(node.value)
            if section is not None:
                self._take("parallelism", section, [])
                return
            node = axes_of_word(node)
        if not isinstance(node, Mapping):
            self.diagnostics.append(wrong_type(node.span, "parallelism", describe_node(node), "a word or axes"))
            return
        self._take("parallelism", *read(Axes, node, "parallelism", at, home_in_axes))

    def _model(self, node: Node, at: Span) -> None:
        if not isinstance(node, Mapping):
            self.diagnostics.append(
                wrong_type(node.span, "model", describe_node(node), "a mapping", hint_for("name", "`model`"))
            )
            return
        self._take("model", *read(ModelSection, node.without(("parameters",)), "model", at, home_of))
        if self.is_part:
            self.diagnostics += check_nodes(node)
        elif isinstance(graph := node.get("graph"), Mapping):
            if graph.entries:
                self._expand(node)
            else:
                self.diagnostics.append(wrong_value(graph.span, "`model.graph` has no node", "add a first one"))
        parameters = node.get("parameters")
        if parameters is not None:
            rules, found = parse_rules(parameters, "", self.templates, self.names, paths=Paths.of(self.document))
            self.diagnostics += found
            self.rules = (*self.rules, *rules)
        self._weights(node.get("weights"))
        self._name_displaced_plugins()

    def _name_displaced_plugins(self) -> None:
        """If the `plugins` of this recipe replaced the `plugins` of its base, mention that in each error about an
        unknown type: a plugin of the base may define the type."""
        gone = next((gone for gone in self.document.dropped if gone.path == ("plugins",)), None)
        if gone is not None:
            related = Related(gone.span, "the list of this recipe replaces these plugins, so it must contain all")
            for at, each in enumerate(self.diagnostics):
                if each.rests_on == "plugins":
                    self.diagnostics[at] = each._replace(related=(*each.related, related))

    def _expand(self, node: Mapping) -> None:
        """Expand the model, and check the references of the objective. The nodes that they name become the outputs of
        the model.
        """
        objective = self.sections.get("objective")
        fields = find(self.tree, ("data", "fields"))
        self.expanded, found = expand(
            node,
            {entry.name: entry.key.span for entry in fields} if isinstance(fields, Mapping) else {},
            self.names,
            self.templates,
            self.layers,
            objective=None if objective is None else self._references(objective),
            paths=Paths.of(self.document),
            field_outputs=_outputs_of(fields),
        )
        self.diagnostics += found
        if self.expanded is None:
            return
        paths = Paths.of(self.document)
        for each in self.expanded.rules:
            rules, found = parse_rules(
                each.entries, each.prefix, self.templates, each.names, may_miss=each.may_miss, paths=paths
            )
            self.diagnostics += found
            self.rules = (*self.rules, *rules)

    def _references(self, objective: ObjectiveSection) -> list[tuple[str, Span]]:
        """Return (reference, span of the reference) for each tensor that the objective reads."""
        spans = Spans(self.tree)
        return [
            (reference, spans(("objective", holder, name, key)))
            for holder, terms in (("losses", objective.losses), ("metrics", objective.metrics))
            for name, term in terms.items()
            for key in ("input", "target", "mask")
            if (reference := getattr(term, key)) is not None
        ]

    def _render_tree(self) -> Mapping:
        """Return the recipe with the templates in `model.graph` and `model.parameters` rendered, except templates that
        read `index` (of a `repeat` copy)."""

        def render(path: str, node: Node) -> Node:
            if path in ("model.graph", "model.parameters"):
                return self.templates.render(node, self.names)[0]
            if path == "model" and isinstance(node, Mapping):
                return node.with_values(lambda entry: render(f"model.{entry.name}", entry.value))
            return node

        return self.tree.with_values(lambda entry: render(entry.name, entry.value))

    @property
    def variables(self) -> MappingABC[str, object]:
        found = self.names["vars"]
        return found if isinstance(found, MappingABC) else {}

    def _plugins(self) -> Added:
        files = self._plugin_files()
        if files:
            from declarative_train.recipe.plugins import read_plugins  # a slow import that few recipes need

            plugins = read_plugins(files, may_import=self.may_import)
            self.layers = {**LAYERS, **plugins.layers}
            self.sinks = plugins.sinks
            self.files = tuple(plugins.files)
            self.diagnostics += plugins.diagnostics
            if not plugins.is_whole:
                self.unread.add("plugins")
            return plugins.components
        return {}

    def _plugin_files(self) -> list[tuple[str, Span]]:
        paths, spans = Paths.of(self.document), Spans(self.tree)
        written = () if self.head is None else self.head.plugins
        places = [spans(("plugins", position)) for position in range(len(written))]
        return [(paths.resolve(path, place), place) for path, place in zip(written, places, strict=True)]

    def _weights(self, node: Node | None) -> None:
        section = self.sections.get("model")
        if not isinstance(node, Mapping) or section is None:
            return
        paths = Paths.of(self.document)
        known = None if self.expanded is None else set(_paths(self.expanded.scope))
        given = []
        for entry in node:
            span = Spans(self.tree)(("model", "weights", entry.name, "path"))
            values = section.weights[entry.name]
            if entry.name and known is not None and entry.name not in known:
                self.diagnostics.append(unknown_weights_node(entry.key.span, entry.name, known))
            path = paths.resolve(values.path, span)
            exclude = self._exclude(entry.name, values.exclude)
            if values.format is not None:
                try:
                    path = find_row("formats", values.format).locate(values, path)
                except PublishedError as problem:
                    self.diagnostics.append(published_model(span, str(problem), problem.hint))
                    continue
                given.append(Weights(entry.name, path, values.rename, span, "data", values.format, exclude))
                continue
            is_checkpoint = PurePath(values.path).name.startswith("step_")
            if not PurePath(values.path).suffix and not is_checkpoint and "://" in path:
                self.diagnostics.append(newest_run(span, values.path))  # a local run is checked by the plan
            given.append(Weights(entry.name, path, values.rename, span, values.statistics, exclude=exclude))
        self.weights = tuple(given)

    def _exclude(self, name: str, selectors: tuple[str, ...]) -> tuple[str, ...]:
        """Return the valid selectors of a list `exclude` in `model.weights`, and report the others. `name`: the entry
        of `model.weights` that has the list. `selectors`: the list."""
        found = []
        for place, selector in enumerate(selectors):
            try:
                compile_selector(selector)
                found.append(selector)
            except ValueError as problem:
                at = Spans(self.tree)(("model", "weights", name, "exclude", place))
                self.diagnostics.append(bad_selector(at, selector, str(problem)))
        return tuple(found)

    def whole_document(self) -> Document:
        """Return the document with the texts of all plugins and shipped blocks that were read, because messages may
        quote them."""
        blocks = () if self.expanded is None else self.expanded.files
        return self.document._replace(files=(*self.document.files, *self.files, *blocks))

    def draft(self) -> Draft:
        data = self.tree.get("data")
        split = data.get("split") if isinstance(data, Mapping) else None
        names = tuple(_keys(split)) if isinstance(split, Mapping) else None
        if split is None and isinstance(data, Mapping) and not self.is_part:
            names = ()
        scope = None if self.expanded is None else self.expanded.scope
        head = {} if self.head is None else dict(self.head)
        return Draft(self.tree, self.sections, scope, names, self.rules, head)

    def recipe(self) -> Recipe:
        """Return the recipe. Call it only if there was no error."""
        assert self.expanded is not None
        assert self.head is not None
        sections = {name: item for name, item in self.sections.items() if name != "model" and name not in OF_PACKS}
        return Recipe(
            name=self.head.name or _stem(self.document.path),
            seed=self.head.seed,
            language=self.head.language,
            meta=self.head.meta,
            plugins=tuple(path for path, _ in self._plugin_files()),
            requires=self.head.requires,
            vars=self.variables,
            model=Model(self.expanded.scope, self.rules, self.weights),
            document=self.whole_document(),
            tree=self._render_tree(),
            sections_of_packs={name: item for name, item in self.sections.items() if name in OF_PACKS},
            **sections,
        )


def _outputs_of(fields: Node | None) -> dict[str, tuple[str, ...]]:
    """Return {field: names of its outputs} for the fields with several outputs. `fields`: the key `data.fields`."""
    found = {}
    for entry in fields if isinstance(fields, Mapping) else ():
        kind = entry.value.get("type") if isinstance(entry.value, Mapping) else None
        if isinstance(kind, Scalar) and isinstance(kind.value, str) and kind.value in FIELDS:
            found[entry.name] = FIELDS[kind.value].outputs
    return {name: outputs for name, outputs in found.items() if outputs}


def _find_outdented(root: Mapping) -> Iterator[str]:
    """Yield the top-level keys that belong inside the empty section above them but are not indented. The caller does
    not report these keys, because the empty section is reported.
    """
    holder: set[str] = set()
    for entry in root:
        if entry.name in Top.model_fields:
            is_empty = entry.name in SECTIONS and isinstance(entry.value, Scalar) and entry.value.is_empty
            holder = keys_of(entry.name) if is_empty else set()
        elif entry.name in holder:
            yield entry.name


def _keys(node: Node | None) -> list[str]:
    return [entry.name for entry in node] if isinstance(node, Mapping) else []


def _paths(scope: Scope) -> Iterator[str]:
    """Yield the path of every node in a graph and in its blocks. For a copy of a `repeat` (`layers.3`), also yield the
    path without the index of the copy (`layers`).
    """
    for _, node in all_nodes(Frame(scope)):
        yield node.path
        yield node.path.rstrip("0123456789").rstrip(".")


def _stem(path: str) -> str:
    return "recipe" if path == "-" else PurePath(path).stem
