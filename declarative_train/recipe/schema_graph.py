"""Parts of the JSON schema that no pydantic model describes: graphs, keys of every node, blocks."""

from __future__ import annotations

import json
import re
from typing import Any

from declarative_train.core.packs import hooks
from declarative_train.recipe.model.blocks import load_shipped_block, read_shipped_file
from declarative_train.recipe.model.blocks_params import Param
from declarative_train.source.node import is_template, to_value

REFERENCE = {"type": "string", "description": "A node, node.output, node.3 (a copy of a repeat), or a field."}


def graph_definitions() -> dict[str, Any]:
    template = {"$ref": "#/$defs/template"}
    names = {"type": "object", "additionalProperties": {"anyOf": [REFERENCE, template]}}
    return {
        "graph": {
            "type": "object",
            "description": "Nodes by name; a node without `input` reads the node above. A text is a tensor expression.",
            "additionalProperties": {
                "anyOf": [
                    {"type": "string", "description": "A tensor expression, such as `mu + exp(log_var / 2)`."},
                    {"$ref": "#/$defs/node"},
                    {"type": "null"},
                ]
            },
        },
        "node_input": {**REFERENCE, "type": ["string", "null"]},
        "node_inputs": {
            "description": "What the ports read: a list in their order, or by name.",
            "anyOf": [{"type": "array", "items": REFERENCE}, names, template],
        },
        "node_params": {
            "description": "In a block: keys of this node that have the value of the block's param of the same name.",
            "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
        },
        "node_repeat": {
            "description": "The number of copies in a chain, each with its own weights: `layers.0`, `layers.1`, ...",
            "anyOf": [{"type": "integer", "minimum": 1}, template],
        },
        "node_when": {
            "description": "false: the node is replaced by its first input.",
            "anyOf": [{"type": "boolean"}, template],
        },
        "block": {
            "type": ["object", "null"],
            "description": "A component written in the recipe language.",
            "properties": {
                "params": {
                    "description": "What a node of this type can set, with defaults: `{{ params.heads }}` inside.",
                    "type": ["object", "null"],
                },
                "inputs": {
                    "description": "The inputs: [x, mask], or {x: required, mask: optional}.",
                    "anyOf": [
                        {"type": "array", "items": {"type": "string"}},
                        {"type": "object", "additionalProperties": {"enum": ["required", "optional", None]}},
                        {"type": "null"},
                    ],
                },
                "graph": {"$ref": "#/$defs/graph"},
                "output": {**REFERENCE, "type": ["string", "null"]},
                "outputs": {
                    "description": "Named outputs, the first being the default.",
                    "anyOf": [names, {"type": "null"}],
                },
                "parameters": {
                    "description": "Settings for the block's own parameters; the recipe's come after.",
                    "type": ["object", "null"],
                    "additionalProperties": {"anyOf": [{"$ref": "#/$defs/parameters"}, {"type": "null"}]},
                },
            },
            "additionalProperties": False,
        },
    }


REUSE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Calls another node again, with the same parameters.",
    "properties": {"node": {**REFERENCE, "description": "The node to call again."}},
    "additionalProperties": False,
}

_TYPES: dict[str | None, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "list": {"type": "array"},
    "mapping": {"type": "object"},
    "str": {"type": "string"},
}


def make_shipped_schema(name: str) -> dict[str, Any]:
    """Return the schema of a node whose type is a shipped block: the parameters of the block, described by the comments
    in the block's file."""
    text = read_shipped_file(name).text
    block, problems = load_shipped_block(name)
    assert block is not None, problems
    more = {key: about for document in hooks("document_block") for key, about in document(name).items()}
    story = re.match(r"(?:#.*\n)+", text)
    return {
        "type": "object",
        "description": "" if story is None else re.sub(r"(?m)^# ?", "", story[0]).strip(),
        "properties": more | {key: _param(param, text) for key, param in block.params.items()},
        "additionalProperties": False,
    }


def _param(param: Param, text: str) -> dict[str, Any]:
    words = re.search(rf"(?m)^  {param.name}:.*?\s# (.*)$", text)
    value = dict(_TYPES.get(param.kind, {}))
    if param.kind in ("int", "float"):
        value |= {"minimum": param.minimum} if param.minimum is not None else {}
        value |= {"maximum": param.maximum} if param.maximum is not None else {}
    if param.choices is not None:
        value = {"enum": list(param.choices)}
    default = None if param.default is None else to_value(param.default)
    about = document_key(words and words[1].strip(), list(default) if isinstance(default, tuple) else default)
    return {**about, "anyOf": [value, {"$ref": "#/$defs/template"}]} if value else about


def document_key(about: str | None, default: object) -> dict[str, Any]:
    """Return {description, default} of a key, for its JSON schema. `about`: description of the key.

    A default that is a list or a template becomes a part of the description, because editors insert `default` into the
    recipe. There, a list would become several lines, which are not valid inside `{ }`, and a template has no value
    outside of its block.
    """
    if (isinstance(default, list) and default) or (isinstance(default, str) and is_template(default)):
        about = f"{about or ''}\n\nDefault: {json.dumps(default, ensure_ascii=False)}".strip()
        default = None
    said: dict[str, Any] = {"description": about} if about else {}
    return {**said, "default": default} if isinstance(default, str | int | float | bool) else said


def join_lines(value: Any) -> Any:
    """Return a schema in which each paragraph of a description is on one line, because editors show line breaks as they
    are."""
    if isinstance(value, list):
        return [join_lines(each) for each in value]
    if not isinstance(value, dict):
        return value
    words = value.get("description")
    flowing = {"description": re.sub(r"(?<!\n)\n(?=[^\s*-])", " ", words)} if isinstance(words, str) else {}
    return {key: join_lines(each) for key, each in value.items()} | flowing
