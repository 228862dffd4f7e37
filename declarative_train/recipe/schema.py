"""JSON schema of the recipe language (draft 2020-12) for editors, made from the pydantic models and the component
tables.

unknown keys    allowed only in a node whose type is a block of the recipe
values          may also be a template `{{ }}`, or null, which removes the value of the base recipe
required keys   none, because another file of the recipe may set them; `dtrain lint` checks the whole recipe
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from pydantic import BaseModel

from declarative_train.components.component import Component, recipe_keys
from declarative_train.components.field_docs import field_docs
from declarative_train.components.layers import LAYERS
from declarative_train.components.metrics import METRICS
from declarative_train.core.names import NODE_WORDS
from declarative_train.recipe.model.blocks import list_shipped
from declarative_train.recipe.model.references import REUSE
from declarative_train.recipe.schema_graph import (
    REUSE_SCHEMA,
    document_key,
    graph_definitions,
    join_lines,
    make_shipped_schema,
)
from declarative_train.recipe.sections.parallelism import DEFAULT, WORDS, Axes, DataAxes, PipelineAxis
from declarative_train.recipe.sections.section import Section, models_in
from declarative_train.recipe.sections.top import Top
from declarative_train.recipe.validate import KINDS, Child, children_of, table

Schema = dict[str, Any]

ADDRESS = "https://json-schema.org/draft/2020-12/schema"
TEMPLATE: Schema = {"type": ["string", "null"], "pattern": r"\{\{"}
OPEN: Schema = {"$ref": "#/$defs/template"}


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def schema() -> Schema:
    definitions: Schema = {"template": {"description": "A template, rendered before the recipe is read.", **TEMPLATE}}
    root = _Definitions(definitions).model(Top)
    definitions |= graph_definitions()
    properties = root["properties"]
    objective = definitions["objective"]["properties"]
    losses, metrics = objective["losses"], objective["metrics"]
    loss = losses["anyOf"][0]["additionalProperties"]["anyOf"][0]
    objective["loss"] = {"description": "The one loss: short for `losses: {loss: ...}`.", **_or_open(loss)}
    objective["metrics"] = _also(metrics, {"type": "array", "items": {"enum": sorted(METRICS)}})
    split = definitions["data"]["properties"]["split"]["anyOf"][0]
    split["additionalProperties"] = _also(split["additionalProperties"], {"type": "number"})
    training = definitions["training"]["properties"]
    for name, key in (("precision", "compute"), ("activation_checkpointing", "policy")):
        words = definitions[name]["properties"][key]["anyOf"][0]
        training[name] = {"default": words["enum"][0], **_also(training[name], words)}
    axes = definitions["parallelism"]["properties"]
    for name in ("context", "tensor"):
        axes[name] = _also(axes[name], {"type": "integer", "minimum": 2})
    model = definitions["model"]["properties"]
    weights = model["weights"]
    model["weights"] = _also(weights, {"type": "string"}, weights["anyOf"][0]["additionalProperties"])
    model["graph"] |= {"$ref": "#/$defs/graph"}
    model["blocks"] |= {"type": "object", "additionalProperties": {"$ref": "#/$defs/block"}}
    properties["parallelism"] = {
        "description": "How the ranks share the work: a word, or a product of axes.",
        "default": DEFAULT().mode,
        "anyOf": [{"enum": [*WORDS]}, {"$ref": "#/$defs/parallelism"}, OPEN],
    }
    whole: Schema = join_lines({"$schema": ADDRESS, **root, "$defs": dict(sorted(definitions.items()))})
    return whole


def _also(value: Schema, *others: Schema) -> Schema:
    """Return a copy of a schema that also accepts values of the schemas `others`."""
    return {**value, "anyOf": [*value["anyOf"][:-1], *others, value["anyOf"][-1]]}


class _Definitions:
    """Definitions (`$defs`) of the schema. Each is added when it is first used."""

    def __init__(self, definitions: Schema) -> None:
        self.definitions = definitions
        self.nodes()
        self.definitions["parallelism"] = self.model(Axes)

    def model(self, model: type[BaseModel]) -> Schema:
        """Return the schema of a mapping whose keys are the fields of a pydantic model."""
        written = model.model_json_schema(mode="validation", ref_template="#/$defs/{model}")
        _document(written.get("$defs", {}), model)
        docs = field_docs(model)
        inner = {name: self._value(each) for name, each in written.pop("$defs", {}).items()}
        children = children_of(model)
        properties = {}
        for name, key in recipe_keys(model).items():
            if issubclass(model, Section) and key == model.inline:
                continue
            value = self._child(name, children[key]) if key in children else written["properties"][name]
            about = docs.get(key) or (inspect.getdoc(children[key].model) if key in children else None)
            said = document_key(about, written["properties"][name].get("default"))
            properties[name] = {**said, **_or_open(self._value(value))}
        holders = [properties]
        while holders:  # a definition may use further ones
            holder = holders.pop()
            used = [name for name in inner if name not in self.definitions and _is_used(name, holder)]
            self.definitions |= {name: inner[name] for name in used}
            holders += [inner[name] for name in used]
        return {
            "type": "object",
            "description": written.get("description", ""),
            "properties": properties,
            "additionalProperties": False,
        }

    def _child(self, name: str, child: Child) -> Schema:
        if child.model in KINDS:
            item: Schema = self._kind(child.model)
        elif child.model.inline is not None:
            item = self._inline(name, child.model)
        else:
            name = _AXES.get(child.model, name)
            if name not in self.definitions:
                self.definitions[name] = {}  # present before it is made, because it may contain itself
                self.definitions[name] = self.model(child.model)
            item = {"$ref": f"#/$defs/{name}"}
        if child.holder is dict:
            return {"type": "object", "additionalProperties": _or_open(item)}
        return {"type": "array", "items": _or_open(item)} if child.holder is tuple else item

    def _kind(self, kind: type[Component]) -> Schema:
        name = KINDS[kind][0].replace(" ", "_")
        if name not in self.definitions:
            self._one_of(name, "type", dict(table(kind)))
        return {"$ref": f"#/$defs/{name}"}

    def _inline(self, name: str, section: type[Section]) -> Schema:
        """Add the definition of a section whose mapping also has the keys of a component: a loss term has the keys of
        its loss. Return a reference to the definition. `name`: name of the section."""
        assert section.inline is not None
        own = self.model(section)
        name = _TERMS.get(name, name)
        self._one_of(name, "type", dict(table(children_of(section)[section.inline].model)), own=own)
        return {"$ref": f"#/$defs/{name}"}

    def _one_of(
        self,
        name: str,
        key: str,
        models: dict[str, type[BaseModel]],
        own: Schema | None = None,
    ) -> None:
        """Add `$defs/NAME`: a mapping whose keys are those of one of `models`, selected by the value of `key` (such as
        `type`). Other keys are errors. `own`: schema of further keys, which the mapping may have for every model."""
        self.definitions[name] = {}  # present before it is made, because it may contain itself
        branches = {}
        for kind, model in sorted(models.items()):
            branch = self.model(model)
            branch["properties"][key] = {"const": kind, "description": branch["description"]}
            if own is not None:
                branch["properties"] |= own["properties"]
            branches[kind] = branch
        self._by_key(name, key, branches, {} if own is None else {"description": own["description"]}, OPEN)

    def nodes(self) -> None:
        """Add `$defs/node`: a node of the graph. It may have unknown keys only if its type is a block of the recipe."""
        branches = {kind: self.model(model) for kind, model in LAYERS.items()}
        branches |= {name: make_shipped_schema(name) for name in list_shipped()} | {REUSE: REUSE_SCHEMA}
        for kind, branch in branches.items():
            words = {word: {"$ref": f"#/$defs/node_{word}"} for word in NODE_WORDS}
            about = {"const": kind, "description": branch["description"]}
            properties = {"type": about, **_without(branch["properties"], "type"), **words}
            branches[kind] = {**branch, "properties": properties}
        self._by_key("node", "type", branches, {"description": "A node of the graph."}, {"type": "string"})

    def _by_key(self, name: str, key: str, branches: Schema, about: Schema, others: Schema) -> None:
        """Add `$defs/NAME`: a mapping in which the value of `key` decides which other keys are allowed.

        `branches`: {value of `key`: schema of the mapping}. `about`: {"description": text about the mapping}, or {}.
        `others`: schema of the values of `key` that are not in `branches`, such as a template. With such a value, the
        mapping may have any other keys."""
        tests: list[Schema] = []
        default = branches.get("tensor")
        for kind, branch in sorted(branches.items()):
            self.definitions[f"{name}.{kind}"] = branch
            test = {"properties": {key: {"const": kind}}, "required": [key]}
            tests.append({"if": test, "then": {"$ref": f"#/$defs/{name}.{kind}"}})
        if others is OPEN:  # `type` may be in the base recipe, or have a default
            known = sorted({word for branch in branches.values() for word in branch["properties"]})
            then = {"properties": default["properties"] if default else {}, "propertyNames": {"enum": known}}
            tests.append({"if": {"not": {"required": [key]}}, "then": then})
        # `key` has no description here, so that an editor shows that of the chosen type.
        choices = {"anyOf": [{"enum": sorted(branches)}, others]}
        self.definitions[name] = {"type": "object", **about, "properties": {key: choices}, "allOf": tests}

    def _value(self, value: Any) -> Any:
        """Return `value`, a JSON schema made by pydantic, without titles, defaults and required keys. Items of lists
        and values of mappings may also be templates or null."""
        if isinstance(value, list):
            return [self._value(each) for each in value]
        if not isinstance(value, dict):
            return value
        kept = {key: self._value(each) for key, each in value.items() if key not in (*_UNWANTED, "properties")}
        if "items" in kept:
            kept["items"] = _or_open(kept["items"])
        if "prefixItems" in kept:
            kept["prefixItems"] = [_or_open(each) for each in kept["prefixItems"]]
        if "properties" in value:
            kept["properties"] = {key: _or_open(self._value(each)) for key, each in value["properties"].items()}
        return kept


def _document(definitions: Schema, model: type[BaseModel]) -> None:
    """Add the docstrings of pydantic fields as descriptions to the schemas in `definitions`, in place. It does so for
    all pydantic classes that the fields of `model` contain, at any depth."""
    for field in model.model_fields.values():
        for each in models_in(field.annotation):
            properties = definitions.get(each.__name__, {}).get("properties", {})
            for name, text in field_docs(each).items():
                if name in properties:
                    properties[name] |= {"description": text}
            _document(definitions, each)


_AXES: dict[type[BaseModel], str] = {
    DataAxes: "data_axes",
    PipelineAxis: "pipeline_axis",
}  # `data` is also a section
_TERMS = {"losses": "loss_term", "metrics": "metric_term"}
_UNWANTED = ("title", "default", "required")


def _or_open(value: Schema) -> Schema:
    """Return a copy of a schema that also accepts a template or null."""
    if OPEN in value.get("anyOf", ()):
        return value
    branches = [each for each in value.get("anyOf", ()) if each != {"type": "null"}]
    about: Schema = {key: value[key] for key in ("description", "default") if key in value}
    if not branches:
        branches = [{key: each for key, each in value.items() if key not in about}]
    if branches == [{}]:
        return value
    return {**about, "anyOf": [*branches, OPEN]}


def _without(properties: Schema, name: str) -> Schema:
    return {key: value for key, value in properties.items() if key != name}


def _is_used(name: str, properties: Schema) -> bool:
    return f'#/$defs/{name}"' in json.dumps(properties)
