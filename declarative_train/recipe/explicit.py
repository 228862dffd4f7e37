"""Explicit recipe: the recipe with every default written out, as plain data, for `dtrain show --explicit`.

added       omitted keys of sections, nodes, components and block parameters, except defaults of `null`
paths       are absolute, so that the text can be stored in any folder
templates   are replaced by their values. Those that read the environment are kept (it may be a password), and those
            that read `index` (it differs in each copy of a `repeat`)
blocks      a shipped block gets all its parameters and is not expanded. A node inside a block of the recipe gets a
            key only if its value is the same wherever the block is used
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC

from pydantic import BaseModel

from declarative_train.components.plugin_components import PLUGIN
from declarative_train.core.duration import Duration
from declarative_train.core.names import NODE_WORDS
from declarative_train.core.secrets import masked
from declarative_train.core.span import Span
from declarative_train.recipe.flat_values import HEAD
from declarative_train.recipe.model.selectors import ParameterRule
from declarative_train.recipe.model.tree import BlockNode, LayerNode, Scope
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sections.parallelism import Axes
from declarative_train.recipe.sections.section import Section
from declarative_train.recipe.sections.top import SECTIONS
from declarative_train.source.node import Entry, Mapping, Node, Scalar, Sequence, is_open, scalars

Values = dict[str, object]

_ENVIRONMENT = re.compile(r"\benv\b")
_VAR = re.compile(r"\bvars\s*\.\s*(\w+)")


def make_explicit(recipe: Recipe) -> Values:
    """Return the recipe with every default written out, as a mapping in the standard order of keys."""
    return _Explicit(recipe).whole()


class _Explicit:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._hidden = _find_hidden_vars(recipe.document.root.get("vars"))
        self._opened: dict[Span, list[Values]] = {}
        self._published: dict[Span, str] = {}
        for node, values in _iterate_nodes(recipe.model.scope):
            self._opened.setdefault(node.key_span, []).append(values)
            if isinstance(node, BlockNode) and node.published is not None and node.published.folder is not None:
                self._published[node.key_span] = node.published.folder
        self._rules = {rule.span: rule for rule in recipe.model.rules}

    def whole(self) -> Values:
        recipe, found = self._recipe, Values()
        for name in HEAD:
            value = getattr(recipe, name)
            if name == "vars":
                value = self._as_written(recipe.document.root.get(name) or {})  # templates stay templates
            elif name == "meta":
                value = self._as_written(recipe.tree.get(name) or {})
            if value not in (None, {}, ()):
                found[name] = value
        for name in SECTIONS:
            if name == "model":
                found[name] = self._model(recipe.tree.get(name))
            elif name == "parallelism":
                found[name] = self._parallelism()
            elif recipe.section(name) is not None:
                found[name] = self._fields(self._whole(name), recipe.tree.get(name))
        return found

    def _whole(self, name: str) -> Section:
        """Return the section `name` of the recipe, with the defaults that depend on other keys filled in."""
        training, layout, data = self._recipe.training, self._recipe.layout, self._recipe.data
        if name == "training" and training.gradient_accumulation_steps is None and training.microbatch_size is None:
            return training.model_copy(update={"gradient_accumulation_steps": 1})
        if name == "layout" and layout.gpus is None and layout.nodes is None and layout.gpus_per_node is None:
            return layout.model_copy(update={"gpus": layout.num_gpus})
        if name == "data" and data.window is not None and data.window.stride is None:
            window = data.window.model_copy(update={"stride": data.window.length})
            return data.model_copy(update={"window": window})
        if name == "evaluation" and self._evaluates_each_epoch():
            return self._recipe.evaluation.model_copy(update={"every": Duration(1, "epochs")})
        section: Section = self._recipe.section(name)
        return section

    def _evaluates_each_epoch(self) -> bool:
        """Return whether a metric that early stopping or the best checkpoint needs is evaluated after each epoch,
        because the recipe omits `evaluation.every`. A run of less than one epoch is evaluated only at its end."""
        recipe = self._recipe
        waits = recipe.training.early_stop is not None or recipe.checkpoint.best is not None
        is_shorter = recipe.training.epochs is not None and recipe.training.epochs < 1
        return recipe.evaluation.every is None and waits and not is_shorter

    def _parallelism(self) -> object:
        """Return the value of `parallelism`: a mapping of its axes, or a word (`auto`, `dp`, `single`) if there are no
        axes.
        """
        found, node = self._recipe.parallelism, self._recipe.tree.get("parallelism")
        if not isinstance(found, Axes) or found == Axes():
            return found.word
        return self._fields(found.with_defaults(), node)

    # -- sections and components

    def _read(self, value: object, node: Node | None) -> object:
        if isinstance(value, BaseModel):
            return self._fields(value, node)
        if isinstance(value, dict):
            return {str(key): self._read(item, _below(node, str(key))) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = node.items if isinstance(node, Sequence) and len(node.items) == len(value) else [None] * len(value)
            return [self._read(item, typed) for item, typed in zip(value, items, strict=True)]
        if isinstance(node, Scalar) and node.value == value:  # they differ for a path, which was made absolute
            return self._as_written(node)
        return str(value) if isinstance(value, Duration) else value

    def _fields(self, value: BaseModel, node: Node | None) -> Values:
        found = Values()
        for name, info in type(value).model_fields.items():
            inner, key = getattr(value, name), info.alias or name
            if isinstance(value, Section) and name == value.inline:
                found = {**self._fields(inner, node), **found}  # `type` comes first
            elif inner is not None:
                found[key] = self._read(inner, _below(node, key))
        return found

    # -- the model, whose nodes stay as written

    def _model(self, node: Node | None) -> Values:
        assert isinstance(node, Mapping)
        found = Values()
        if isinstance(blocks := node.get("blocks"), Mapping) and blocks.entries:
            found["blocks"] = {entry.name: self._block(entry.value) for entry in blocks}
        found["graph"] = self._graph(node.get("graph"))
        weights = {each.node: self._weights(node, each.node) for each in self._recipe.model.weights}
        if weights:
            found["weights"] = weights.get("", weights)
        if isinstance(parameters := node.get("parameters"), Mapping) and parameters.entries:
            found["parameters"] = self._parameters(parameters)
        return found

    def _block(self, node: Node) -> Values:
        assert isinstance(node, Mapping)
        found = Values()
        for entry in node:
            if entry.name == "graph":
                found[entry.name] = self._graph(entry.value)
            elif entry.name == "parameters" and isinstance(entry.value, Mapping):
                found[entry.name] = self._parameters(entry.value)
            else:
                found[entry.name] = self._as_written(entry.value)
        return found

    def _graph(self, node: Node | None) -> Values:
        assert isinstance(node, Mapping)
        return {entry.name: self._node(entry) for entry in node}

    def _node(self, entry: Entry) -> object:
        node = entry.value
        if not isinstance(node, Mapping):
            return self._as_written(node)
        handed = node.get("params")
        given = {item.text for item in handed.items if isinstance(item, Scalar)} if isinstance(handed, Sequence) else ()
        opened = [values for values in self._opened.get(entry.key.span, ()) if values]
        own = self._own_params(node)
        added = {
            key: value
            for key, value in (opened[0] if opened else own).items()
            if key not in given and key not in NODE_WORDS and all(each.get(key) == value for each in opened)
        }
        found = self._fill(node, added)
        return found | {"from": self._published[entry.key.span]} if entry.key.span in self._published else found

    def _own_params(self, node: Mapping) -> Values:
        """Return {parameter: default} for the block that is a node's `type`; {} if the recipe does not define this
        block. A parameter is left out if its default is missing or contains a template or null."""
        kind = node.get("type")
        name = kind.value if isinstance(kind, Scalar) else None
        params = _below(_below(_below(self._recipe.tree.get("model"), "blocks"), str(name)), "params")
        if not isinstance(params, Mapping):
            return {}
        found = Values()
        for entry in params:
            declared = _below(entry.value, "type") is not None
            default = _below(entry.value, "default") if declared else entry.value
            if default is not None and not is_open(default) and not _has_null(default):
                found[entry.name] = self._as_written(default)
        return found

    def _fill(self, node: Mapping, added: MappingABC[str, object]) -> Values:
        """Return the keys of `node` as written, followed by the missing keys with their values from `added` (except
        None). Nested mappings are filled in the same way.
        """
        found = Values()
        for entry in node:
            more = added.get(entry.name)
            if isinstance(entry.value, Mapping) and isinstance(more, MappingABC):
                found[entry.name] = self._fill(entry.value, more)
            else:
                found[entry.name] = self._as_written(entry.value)
        return found | {key: _plain(value) for key, value in added.items() if key not in found and value is not None}

    def _weights(self, model: Mapping, node: str) -> Values:
        each = next(each for each in self._recipe.model.weights if each.node == node)
        path = _below(_below(_below(model, "weights"), node), "path")
        is_url = isinstance(path, Scalar) and path.value == each.path and self._is_hidden(path)
        found: Values = {"path": path.template if is_url and isinstance(path, Scalar) else each.path}
        found |= {"exclude": list(each.exclude)} if each.exclude else {}
        if each.format is not None:
            return found | {"format": each.format}
        return found | {"rename": dict(each.rename), "statistics": each.statistics}

    def _parameters(self, node: Mapping) -> Values:
        found = Values()
        for entry in node:
            rule = self._rules.get(entry.key.span)
            if isinstance(entry.value, Mapping):
                found[entry.name] = self._fill(entry.value, _read_components(rule))
            else:
                found[entry.name] = self._as_written(entry.value)
        return found

    # -- values as written

    def _as_written(self, node: object) -> object:
        if isinstance(node, Mapping):
            return {entry.name: self._as_written(entry.value) for entry in node}
        if isinstance(node, Sequence):
            return [self._as_written(item) for item in node.items]
        if isinstance(node, Scalar):
            return node.template if self._is_hidden(node) else node.value
        return node

    def _is_hidden(self, node: Scalar) -> bool:
        """Return whether the rendered value may be a secret, so that its template is shown instead: the template reads
        an environment variable (`env`), directly or through an entry of `vars`, or the value looks like a password.
        """
        if node.template is None:
            return False
        names = set(_VAR.findall(node.template))
        is_env = _ENVIRONMENT.search(node.template) is not None
        return is_env or bool(names & self._hidden) or masked(str(node.value)) != str(node.value)


def _below(node: Node | None, key: str) -> Node | None:
    return node.get(key) if isinstance(node, Mapping) else None


def _iterate_nodes(scope: Scope) -> Iterator[tuple[LayerNode | BlockNode, Values]]:
    """Yield (node, {key: value}) for each layer and block. The dict has the keys of the layer, or the parameters of a
    shipped block, whose inner nodes are left out. A block that the recipe defines has {}, and its inner nodes follow
    it."""
    for node in scope.nodes:
        if isinstance(node, LayerNode):
            yield node, {key: value for key, value in node.layer.as_data().items() if value is not None}
        elif isinstance(node, BlockNode):
            yield node, {key: _plain(value) for key, value in node.params.items() if value is not None}
            if not node.params:
                yield from _iterate_nodes(node.scope)


def _read_components(rule: ParameterRule | None) -> Values:
    """Return {key: value} for the keys `init`, `optimizer` and `adapter` that an entry of `model.parameters` has. Each
    value is a component, as a mapping with all its keys. {} if `rule` is None."""
    if rule is None:
        return {}
    parts = {"init": rule.settings.init, "optimizer": rule.settings.optimizer, "adapter": rule.settings.adapter}
    found = {key: part.as_data() for key, part in parts.items() if part is not None}
    return {key: {name: each for name, each in value.items() if name != PLUGIN} for key, value in found.items()}


def _plain(value: object) -> object:
    if isinstance(value, MappingABC):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _has_null(node: Node) -> bool:
    return any(each.value is None for each in scalars(node))


def _find_hidden_vars(node: Node | None) -> set[str]:
    """Return the names of the vars whose templates read the environment, directly or through another var. `node`: the
    key `vars` of the recipe.
    """
    if not isinstance(node, Mapping):
        return set()
    texts = {entry.name: " ".join(each.text for each in scalars(entry.value) if is_open(each)) for entry in node}
    found = {name for name, text in texts.items() if _ENVIRONMENT.search(text)}
    while more := {name for name, text in texts.items() if name not in found and found & _names(text)}:
        found |= more
    return found


def _names(text: str) -> set[str]:
    return set(_VAR.findall(text))
