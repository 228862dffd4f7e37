"""The JSON schema file against every recipe that is fine, with the `jsonschema` package as the judge."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from declarative_train.source.reader import read_text
from declarative_train.source.template_names import to_lists

ROOT = Path(__file__).parents[2]
GOOD = sorted([*(ROOT / "recipes").rglob("*.yaml"), *(ROOT / "tests" / "cases" / "ok").rglob("*.yaml")])


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads((ROOT / "schemas" / "recipe.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def problems(text: str, validator: Draft202012Validator) -> list[str]:
    node, found = read_text("r.yaml", text)
    assert node is not None, found
    value: Any = to_lists(node)
    return [f"{each.json_path}: {each.message}" for each in validator.iter_errors(value)]


def test_there_are_recipes() -> None:
    assert len(GOOD) >= 12


@pytest.mark.parametrize("path", GOOD, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_found_in_a_good_recipe(path: Path, validator: Draft202012Validator) -> None:
    assert problems(path.read_text("utf-8"), validator) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("trainin: {epochs: 3}", "$"),
        ("training: {epoch: 3}", "$.training"),
        ("model: {graph: {a: {type: linear, out_feature: 3}}}", "$.model.graph.a"),
        ("model: {blocks: {b: {graph: {a: {type: linear, out_feature: 3}}}}}", "$.model.blocks.b.graph.a"),
        ("parallelism: ddq", "$.parallelism"),
    ],
)
def test_a_mistake_is_found_at_its_place(text: str, where: str, validator: Draft202012Validator) -> None:
    node, _ = read_text("r.yaml", text)
    assert node is not None
    found = [leaf for each in validator.iter_errors(to_lists(node)) for leaf in (each, *leaves(each))]
    assert where in {each.json_path for each in found}


def leaves(error: Any) -> list[Any]:
    return [inner for each in error.context for inner in (each, *leaves(each))]


def test_every_reference_leads_somewhere() -> None:
    """An editor that finds one open end shows it as a mistake in every recipe."""
    text = (ROOT / "schemas" / "recipe.schema.json").read_text("utf-8")
    known = {f"#/$defs/{name}" for name in json.loads(text)["$defs"]}
    assert set(re.findall(r'"\$ref": "([^"]+)"', text)) <= known
