"""The JSON schema: what it takes, what it refuses, what it tells an editor. The recipes are read by our own reader."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from declarative_train.components.layers import LAYERS
from declarative_train.recipe.model.blocks import list_shipped
from declarative_train.recipe.schema import schema
from declarative_train.source.reader import read_text
from declarative_train.source.template_names import to_lists
from tests.alone import mark_packs, text_of_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
TYPES = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "null": type(None),
    "number": (int, float),
    "object": dict,
    "string": str,
}
KNOWN = {
    *("$schema", "$defs", "$ref", "title", "description", "default", "examples", "type", "enum", "const", "pattern"),
    *("anyOf", "allOf", "if", "then", "not", "required", "properties", "propertyNames", "additionalProperties"),
    *("items", "prefixItems", "minItems", "maxItems", "minLength", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum"),
}


@pytest.fixture(scope="module")
def root() -> dict[str, Any]:
    return schema()


def fits(value: Any, rule: Any, root: dict[str, Any]) -> bool:
    """The keywords that our schema uses, as draft 2020-12 defines them."""
    if isinstance(rule, bool):
        return rule
    assert rule.keys() <= KNOWN, rule.keys() - KNOWN

    def inner(one: Any, by: Any) -> bool:
        return fits(one, by, root)

    if "$ref" in rule and not inner(value, root["$defs"][rule["$ref"].removeprefix("#/$defs/")]):
        return False
    names = rule.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(is_a(value, name) for name in names):
        return False
    if "enum" in rule and not any(same(value, each) for each in rule["enum"]):
        return False
    if "const" in rule and not same(value, rule["const"]):
        return False
    if not all(inner(value, each) for each in rule.get("allOf", ())):
        return False
    if "anyOf" in rule and not any(inner(value, each) for each in rule["anyOf"]):
        return False
    if "not" in rule and inner(value, rule["not"]):
        return False
    if "if" in rule and inner(value, rule["if"]) and not inner(value, rule["then"]):
        return False
    if isinstance(value, str) and ("pattern" in rule and not re.search(rule["pattern"], value)):
        return False
    if is_a(value, "number"):
        return (
            value >= rule.get("minimum", value)
            and value <= rule.get("maximum", value)
            and ("exclusiveMinimum" not in rule or value > rule["exclusiveMinimum"])
            and ("exclusiveMaximum" not in rule or value < rule["exclusiveMaximum"])
        )
    if isinstance(value, list):
        if not rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)):
            return False
        first = rule.get("prefixItems", [])
        pairs = [*zip(value, first, strict=False), *((each, rule.get("items", True)) for each in value[len(first) :])]
        return all(inner(each, by) for each, by in pairs)
    if isinstance(value, dict):
        properties, others = rule.get("properties", {}), rule.get("additionalProperties", True)
        return (
            all(name in value for name in rule.get("required", ()))
            and all(inner(name, rule.get("propertyNames", True)) for name in value)
            and all(inner(each, properties.get(name, others)) for name, each in value.items())
        )
    return True


def is_a(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))  # type: ignore[arg-type]


def same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def takes(text: str, root: dict[str, Any]) -> bool:
    node, problems = read_text("r.yaml", text)
    assert node is not None, problems
    return fits(to_lists(node), root, root)


@pytest.mark.parametrize("path", mark_packs(RECIPES, text_of_recipe), ids=lambda path: path.stem)
def test_shipped_recipes_fit(path: Path, root: dict[str, Any]) -> None:
    assert takes(path.read_text(), root)


@pytest.mark.parametrize(
    "text",
    [
        "parallelism: ddp",
        "parallelism: {data: {replicate: all, shard: 2}, pipeline: {stages: 4, microbatches: 8, cut_before: [a.4]}}",
        'training: {steps: "{{ vars.n }}", clip_grad_norm: null, optimizer: {lr: 0.1}}',
        "training: {optimizer: {type: adamw, lr: 1e-3, betas: [0.9, 0.95]}}",
        "training: {lr_schedule: {type: cosine, warmup: 5%}, max_time: 2 hours}",
        "model: {graph: {a: relu(x), b: {type: linear, out_features: 4, repeat: 3, when: true}, c: null}}",
        "model: {graph: {a: {type: my_block, anything: [1, {b: 2}]}, b: {type: mlp, hidden: [4]}}}",
        "model: {graph: {a: {type: reuse, node: b}}, weights: w.pt, parameters: {norm*: {weight_decay: 0}}}",
        "model: {blocks: {b: {params: {n: 4}, inputs: {x: required, m: optional}, graph: {}, outputs: {y: z}}}}",
        "objective: {loss: {type: mean, input: x, weight: 2}, metrics: [accuracy]}",
        "objective: {losses: {a: {label_smoothing: 0.1}}, metrics: {accuracy: {of: a}, b: {type: f1}}}",
        "data: {split: {validation: 0.2, test: {type: where, column: m, in: [1, a]}, more: {source: {type: csv}}}}",
        "data: {fields: {x: {columns: 'p*', scale: 0.5}, y: {num_classes: 5}}, window: {length: 4}}",
        "layout: {gpus: [0, 3]}",
        "extends: [a.yaml, b.yaml]\nfragment: true\nvars: {a: [1]}\nmeta: {x: {y: null}}",
    ],
)
def test_what_it_takes(text: str, root: dict[str, Any]) -> None:
    assert takes(text, root)


@pytest.mark.parametrize(
    "text",
    [
        "seeds: 1",
        "seed: one",
        "parallelism: ddq",
        "parallelism: {mode: ddp}",
        "training: {epoch: 5}",
        "training: {epochs: 0}",
        "training: {optimizer: {type: adam, lrs: 1}}",
        "training: {optimizer: {type: adm, lr: 1}}",
        "training: {optimizer: {lrs: 1}}",
        "training: {lr_schedule: {type: cosine, warmup: 5}}",
        "training: {compile: yes}",
        "model: {graph: {a: {type: linear, out_feature: 3}}}",
        "model: {graph: {a: {type: linear, out_features: many}}}",
        "model: {graph: {a: {type: mlp, hiden: [4]}}}",
        "model: {parameters: {norm: {freeze: true}}}",
        "model: {blocks: {b: {param: {}}}}",
        "objective: {loss: {type: mse, inputs: x}}",
        "objective: {metrics: [acc]}",
        "data: {fields: {x: {column: a, dtyp: float32}}}",
        "layout: {gpus: 0}",
        "evaluation: {every: 100}",
        "evaluation: {max: 5 epochs}",
    ],
)
def test_what_it_refuses(text: str, root: dict[str, Any]) -> None:
    assert not takes(text, root)


def test_every_key_has_its_words_and_defaults(root: dict[str, Any]) -> None:
    training = root["$defs"]["training"]["properties"]
    assert training["precision"]["default"] == "fp32"
    silent = [
        f"{name}.{key}"
        for name, each in root["$defs"].items()
        for key, value in each.get("properties", {}).items()
        if "description" not in value and "$ref" not in value and name.partition(".")[2] not in list_shipped()
    ]
    # the words are those of the type that is named
    assert [each for each in silent if not each.endswith((".type", ".mode"))] == []
    adamw = root["$defs"]["optimizer.adamw"]["properties"]
    assert adamw["type"]["description"].startswith("Adam with decoupled weight decay")
    # an editor would insert a list as a block of lines, inside `{ }` too
    assert adamw["betas"]["description"].endswith("Default: [0.9, 0.999]")
    assert "default" not in adamw["betas"]


def test_every_type_of_a_node_is_offered(root: dict[str, Any]) -> None:
    offered = root["$defs"]["node"]["properties"]["type"]["anyOf"][0]["enum"]
    assert offered == sorted([*LAYERS, *list_shipped(), "reuse"])


def test_it_is_the_same_each_time(root: dict[str, Any]) -> None:
    assert schema() == root
