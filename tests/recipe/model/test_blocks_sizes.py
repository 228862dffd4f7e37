"""The shipped blocks have the parameters of the models that they are, counted as published, and start as those do."""

from __future__ import annotations

from math import prod

import pytest

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.lower import lower
from declarative_train.recipe import load
from declarative_train.recipe.model.selectors import check_rules, settings_of
from declarative_train.recipe.recipe import Recipe

RECIPE = """
name: size
data:
  source: {type: synthetic, kind: images, rows: 64}
  fields: {x: {column: image}, y: {column: label, dtype: int64}}
model:
  graph:
    model: {BLOCK, input: x}
objective:
  loss: {type: cross_entropy, input: model, target: y}
training: {steps: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
"""
IMAGE = {"x": TensorSpec((3, 224, 224)), "y": TensorSpec((), "int64", 1000)}


def tokens(length: int, vocabulary: int) -> dict[str, TensorSpec]:
    return {name: TensorSpec((length,), "int64", vocabulary) for name in ("x", "y")}


def shapes(block: str, fields: dict[str, TensorSpec]) -> tuple[Recipe, dict[str, tuple[int, ...]]]:
    text = RECIPE
    if "inputs:" in block:
        text = text.replace(", input: x}", "}").replace("fields: {", "fields: {image: {column: image}, ")
    loaded = load("size.yaml", text=text.replace("BLOCK", block))
    assert loaded.recipe is not None, loaded.diagnostics
    lowered, problems = lower(loaded.recipe, fields)
    assert lowered is not None, problems
    return loaded.recipe, dict(lowered.parameters)


@pytest.mark.parametrize(
    ("block", "fields", "num_parameters"),
    [
        ("type: resnet, depth: 18, out_features: 1000", IMAGE, 11_689_512),
        ("type: resnet, depth: 50, out_features: 1000, norm: batch_norm", IMAGE, 25_557_032),
        ("type: vit, out_features: 1000", IMAGE, 22_050_664),  # ViT-S/16
        ("type: gemma, vocabulary: 256000", tokens(128, 256000), 2_506_172_416),  # Gemma 2B, tied
        (
            "type: clip, inputs: {image: image, tokens: x}",  # ViT-B/32
            {"x": tokens(77, 49408)["x"], "y": TensorSpec((), "int64", 512), "image": IMAGE["x"]},
            151_277_313,
        ),
        ("type: gpt, vocabulary: 50257", tokens(1024, 50257), 124_439_808),  # GPT-2, tied
        (
            "type: llama, vocabulary: 128256, heads: 32, kv_heads: 8, hidden: 8192, tie: true",
            tokens(128, 128256),
            1_235_814_400,  # Llama 3.2 1B
        ),
    ],
)
def test_the_number_of_parameters(block: str, fields: dict[str, TensorSpec], num_parameters: int) -> None:
    recipe, found = shapes(block, fields)
    tied = [name for name in found if settings_of(recipe.model.rules, name).tie is not None]
    assert sum(prod(shape) for name, shape in found.items() if name not in tied) == num_parameters
    assert not list(check_rules(recipe.model.rules, found))


def test_gpt_starts_as_gpt_2_does() -> None:
    recipe, found = shapes("type: gpt, vocabulary: 64, layers: 2, width: 16, heads: 2", tokens(8, 64))
    starts = {name: settings_of(recipe.model.rules, name) for name in found}
    assert starts["model.logits.weight"].tie == "model.embed.weight"
    for name, settings in starts.items():
        kind = "zeros" if name.endswith("bias") else "ones" if "norm" in name else "normal"
        assert settings.init is not None
        assert settings.init.type == kind, name
    assert starts["model.layers.1.down.weight"].init.std == starts["model.layers.0.attn.out.weight"].init.std == 0.01
    assert starts["model.layers.1.up.weight"].init.std == 0.02
    free, found = shapes(
        "type: gpt, vocabulary: 64, layers: 1, width: 16, heads: 2, tie: false, bias: false", tokens(8, 64)
    )
    assert settings_of(free.model.rules, "model.logits.weight").tie is None
    assert not any("bias" in name for name in found)
    assert not list(check_rules(free.model.rules, found))


def test_the_rules_of_a_users_block_must_meet_something_somewhere() -> None:
    text = RECIPE.replace(
        "  graph:\n    model: {BLOCK, input: x}",
        """  blocks:
    part:
      params: {deep: false}
      inputs: [x]
      graph: {a: {type: linear, out_features: 4}, b: {type: linear, out_features: 4, when: "{{ params.deep }}"}}
      output: b
      parameters: {b: {lr_scale: 0.5}, c: {lr_scale: 0.5}}
  graph:
    one: {type: part, input: x}
    model: {type: part, deep: true}""",
    )
    recipe = load("size.yaml", text=text).recipe
    assert recipe is not None
    lowered, _ = lower(recipe, {"x": TensorSpec((8,)), "y": TensorSpec((), "int64", 4)})
    assert lowered is not None
    (problem,) = check_rules(recipe.model.rules, lowered.parameters)
    assert (problem.code, problem.span.line) == ("U002", 13)


@pytest.mark.parametrize(
    ("block", "message", "way_out"),
    [
        ("type: gpt, vocabulary: 90, width: 32, heads: 4", "`vocabulary: 90` is too small", "set `vocabulary` to 100"),
        (
            "type: gpt, vocabulary: 100, width: 32, heads: 5",
            "a width of 32",
            "set `heads` to one of 1, 2, 4, 8, 16, 32",
        ),
        (
            "type: gpt, vocabulary: 100, width: 32, heads: 4, max_length: 9",
            "`max_length: 9` is shorter",
            "remove it",
        ),
    ],
)
def test_what_does_not_fit_inside_a_block_is_said_in_words_of_the_recipe(
    block: str, message: str, way_out: str
) -> None:
    loaded = load("size.yaml", text=RECIPE.replace("BLOCK", block))
    assert loaded.recipe is not None, loaded.diagnostics
    _, (found,) = lower(loaded.recipe, tokens(12, 100))
    assert (found.code, found.span.path, found.span.line) == ("G001", "size.yaml", 8)
    assert found.message.startswith(message)
    assert found.help is not None
    assert found.help.startswith(way_out)
    assert ", or " not in found.help
