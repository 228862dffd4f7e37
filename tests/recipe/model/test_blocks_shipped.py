"""The shipped blocks: every param at work, and mistakes in them told at the recipe's node."""

from __future__ import annotations

from collections import Counter

import pytest

from declarative_train.components.layers import LAYERS
from declarative_train.core.names import RESERVED, is_name
from declarative_train.recipe.model.blocks import list_shipped, load_shipped_block
from declarative_train.recipe.model.tree import LayerNode


def types(opened) -> Counter[str]:
    return Counter(node.layer.type for node in opened.nodes() if isinstance(node, LayerNode))


def use(fields: str) -> str:
    return f"graph:\n  logits: {{{fields}, input: pixels}}\n"


@pytest.mark.parametrize("name", list_shipped())
def test_a_shipped_block_reads_without_a_word_and_tells_what_it_is(name: str) -> None:
    block, problems = load_shipped_block(name)
    assert not problems
    assert block is not None
    assert block.file.text.startswith("# ")
    assert name not in LAYERS


@pytest.mark.packs
def test_there_are_the_models_and_losses_that_are_promised() -> None:
    models = {"bert", "clip", "deepseek", "gemma", "gpt", "gpt_oss", "llama", "mixtral", "mlp", "resnet", "vit"}
    losses = {"bradley_terry", "distillation", "dpo", "ipo", "kto", "orpo", "sequence_log_likelihood", "simpo"} | {
        "packed_last",
        "packed_log_likelihood",
    }
    assert set(list_shipped()) == models | losses


def test_mlp_takes_a_list_of_any_length(open_model) -> None:
    opened = open_model(
        use("type: mlp, hidden: [7, 6, 5], activation: gelu, dropout: 0.5, out_features: 3, bias: false")
    )
    widths = [
        node.layer.out_features
        for node in opened.nodes()
        if getattr(node, "layer", None) and node.layer.type == "linear"
    ]
    assert widths == [7, 6, 5, 3]
    assert types(opened) == {"linear": 4, "gelu": 3, "dropout": 3}
    assert opened.node("logits.layers.1.linear").layer.bias is False
    short = open_model(use("type: mlp, hidden: [7]"))
    assert types(short) == {"linear": 1, "relu": 1}
    assert short.scope.outputs == {"logits": "logits:output"}
    assert types(open_model(use("type: mlp, hidden: [], out_features: 3"))) == {"linear": 1}


@pytest.mark.parametrize(
    ("fields", "code", "caret"),
    [
        ("type: mlp", "S002", "mlp"),
        ("type: mlp, hiden: [7]", "S001", "hiden"),
        ("type: mlp, hidden_layer_sizes: [7]", "S001", "hidden_layer_sizes"),
        ("type: mlp, hidden: 7", "S003", "7"),
        ("type: mlp, hidden: [7], activation: rely", "S005", "rely"),
        ("type: mlp, hidden: [0]", "S004", "[0]"),
        ("type: gpt, vocabulary: 9, layers: 1000000", "B008", "1000000"),
        ("type: resnet, depth: 51", "S004", "51"),
        ("type: vit, pool: max", "S004", "max"),
        ("type: gpt, vocabulary: 9, dropout: 2.0", "S004", "2.0"),
    ],
)
def test_mistakes_are_told_at_the_node_of_the_recipe(open_model, fields: str, code: str, caret: str) -> None:
    opened = open_model(use(fields))
    assert set(opened.said()) == {(code, caret)}


@pytest.mark.parametrize("name", ["bert", "gemma", "gpt", "llama", "mixtral"])
def test_noise_is_added_to_the_embedding(open_model, name: str) -> None:
    fields = f"type: {name}, vocabulary: 256, layers: 2, width: 32, heads: 4"
    noisy = open_model(use(f"{fields}, noise: 5"))
    assert types(noisy) == types(open_model(use(fields))) + Counter({"embedding_noise": 1})
    assert noisy.node("logits.noise").layer.alpha == 5


def test_gpt_ties_and_initialises_itself(open_model) -> None:
    opened = open_model(use("type: gpt, vocabulary: 256, layers: 3, width: 32, heads: 4"))
    assert types(opened) == {
        "embedding": 1,
        "learned_positions": 1,
        "layer_norm": 7,
        "self_attention": 3,
        "linear": 7,
        "gelu": 3,
    }
    assert opened.node("logits.layers.2.up").layer.out_features == 128
    assert opened.scope.units == ("logits.layers.0", "logits.layers.1", "logits.layers.2")
    (rules,) = opened.expanded.rules
    assert rules.prefix == "logits"
    assert "logits.weight" in {entry.name for entry in rules.entries}
    assert [file.role for file in opened.expanded.files] == ["block"]
    assert open_model(use("type: gpt, vocabulary: 256, layers: 1, dropout: 0.1")).codes == []


def test_gpt_shows_its_hidden_states(open_model) -> None:
    text = "graph:\n  gpt: {type: gpt, vocabulary: 9, layers: 1, input: pixels}\n  logits: gpt.hidden[:, -1]\n"
    assert open_model(text).node("logits").inputs == {"gpt.hidden": "gpt:hidden"}


def test_llama_groups_its_queries(open_model) -> None:
    opened = open_model(
        use("type: llama, vocabulary: 9, layers: 2, width: 64, heads: 8, kv_heads: 2, rotary_base: 500000")
    )
    attention = opened.node("logits.layers.1.attn").layer
    assert (attention.heads, attention.kv_heads, attention.rotary.base, attention.causal) == (8, 2, 500000, True)
    assert opened.node("logits.layers.0.gate").layer.out_features == 256  # 8/3 of the width, up to a multiple of 256
    assert (
        open_model(use("type: llama, vocabulary: 9, layers: 1, heads: 4")).node("logits.layers.0.attn").layer.kv_heads
        == 4
    )


@pytest.mark.parametrize(("depth", "convolutions"), [(18, 20), (34, 36), (50, 53), (101, 104), (152, 155)])
def test_resnet_has_the_convolutions_of_the_paper(open_model, depth: int, convolutions: int) -> None:
    opened = open_model(use(f"type: resnet, depth: {depth}, out_features: 10"))
    assert types(opened)["conv2d"] == types(opened)["group_norm"] == convolutions
    assert types(opened)["linear"] == 1
    assert opened.scope.units == tuple(f"logits.stages.{i}" for i in range(4))


def test_resnet_switches_norm_stem_and_head(open_model) -> None:
    opened = open_model(
        use("type: resnet, depth: 18, norm: batch_norm, over: 32 samples, small_images: true, width: 16")
    )
    assert types(opened) == {"conv2d": 20, "batch_norm": 20, "relu": 9}
    assert opened.node("logits.stem.conv").layer.kernel_size == 3
    assert opened.node("logits").scope.outputs == {"logits": "pooled:output", "features": "pooled:output"}
    assert opened.node("logits.stages.0.units.0.a.batch_norm").layer.over == "32 samples"


def test_vit_raises_its_drop_path_with_depth(open_model) -> None:
    opened = open_model(
        use("type: vit, layers: 3, width: 32, heads: 2, drop_path: 0.2, out_features: 10, patch_size: 4")
    )
    rates = [node.layer.p for node in opened.nodes() if getattr(node, "layer", None) and node.layer.type == "drop_path"]
    assert rates == [0.1, 0.1, 0.2, 0.2]
    assert types(opened)["class_token"] == 1
    mean = open_model(use("type: vit, layers: 1, pool: mean"))
    assert types(mean)["class_token"] == 0
    assert mean.node("logits.pooled").layer.mode == "mean"


def test_fields_inside_are_placed_where_the_recipe_gives_them(open_model) -> None:
    opened = open_model(use("type: gpt, vocabulary: 9, layers: 2, width: 32, heads: 3"))
    attention = opened.node("logits.layers.1.attn")
    assert opened.under(attention.field_spans["heads"]) == "3"
    assert opened.under(opened.node("logits.layers.0.down").field_spans["out_features"]) == "32"
    assert attention.field_spans["causal"].path.endswith("gpt.yaml")  # the block's own value
    assert attention.field_spans["kv_heads"].path.endswith("gpt.yaml")  # a default
    deep = open_model(use("type: mlp, hidden: [7, -6]"))
    assert deep.said() == [("S004", "[7, -6]")]


def test_each_use_of_a_shipped_block_has_its_own_places(open_model) -> None:
    text = """
graph:
  one: {type: mlp, hidden: [7], input: pixels}
  logits: {type: mlp, hidden: [7]}
"""
    opened = open_model(text)
    spans = [opened.node(f"{name}.layers.0.linear").field_spans["out_features"] for name in ("one", "logits")]
    assert [span.line for span in spans] == [3, 4]


def test_no_shipped_layer_takes_a_word_of_the_language() -> None:  # decisions, Q6
    for name, layer in LAYERS.items():
        fields = set(layer.model_fields) - {"type"}
        ports = {port.name for port in layer.ports}
        assert is_name(name)
        assert not (fields | ports) & set(RESERVED), name
        assert not fields & {"node"} or name == "reuse"
        assert all(is_name(word) for word in (*ports, *layer.outputs)), name
