"""Models of transformers and timm as nodes: what the library computes, from its weights, in every mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.utils.flop_counter import FlopCounterMode

import declarative_train as dt
from declarative_train.core import machine
from tests.engine.made_recipes import merged, on_pipeline
from tests.engine.parity import Recording, largest_difference, record
from tests.packs.pretrained import library_models as made

WAYS: dict[str, dict[str, Any]] = {
    "dp": {"parallelism": "dp", "layout": {"gpus": 2}},
    "ddp": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "fsdp": {"parallelism": "fsdp", "layout": {"gpus": 2}},
}
LIMITS = {"test_efficientnet": 1e-8}  # whose 20 batch normalisations over 4 samples each amplify rounding


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library")
    made.write_data(path)
    return path


def written(folder: Path, node: dict[str, Any], target: str = "next", **more: Any) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(made.recipe(node, target, **more), sort_keys=False))
    return path


def said(path: Path) -> tuple[str, str]:
    found = [each for each in dt.load(path).lint() if each.is_error]
    assert len(found) == 1, found
    return found[0].message, found[0].help or ""


@pytest.mark.timeout(200)
def test_a_published_model_is_the_one_that_transformers_loads(folder: Path) -> None:
    """Values, the buffers that no file holds among them, and logits."""
    theirs = made.publish("qwen3", folder / "qwen3", max_shard_size="20KB")
    assert (folder / "qwen3" / "model.safetensors.index.json").exists()
    plan = dt.load(written(folder, {"type": "transformers", "path": "qwen3", "input": "tokens"})).plan()
    ours = plan.module().eval().get_submodule("net")
    wanted = dict(theirs.named_parameters())
    assert {name: item.shape for name, item in ours.named_parameters()} == {n: p.shape for n, p in wanted.items()}
    assert [each.name for each in plan.plan.parameters] == [f"net.{name}" for name in wanted]
    for name, item in (*theirs.named_parameters(), *theirs.named_buffers()):
        assert torch.equal(dict((*ours.named_parameters(), *ours.named_buffers()))[name], item), name
    assert any("inv_freq" in name for name, _ in ours.named_buffers())
    tokens = torch.randint(0, 64, (3, made.TOKENS), generator=torch.Generator().manual_seed(1))
    assert torch.equal(ours(tokens, *[None] * (len(ours._dtrain_layer.ports) - 1)), theirs(tokens).logits)
    assert plan.plan.layout.units == ("net.model.layers.0", "net.model.layers.1")
    with FlopCounterMode(display=False) as counter:
        theirs(tokens[:1])
    assert plan.plan.flops.forward == counter.get_total_flops() > 0


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"config": {"model_type": "berd"}}, "has no `model_type` `berd`", "did you mean bert?"),
    ({"config": {}}, "neither a `path` nor a `model_type`", "`path: FOLDER`"),
    ({"architecture": "LlamaForCausalLLM"}, "has no model `LlamaForCausalLLM`", "did you mean LlamaForCausalLM?"),
    ({"attn_implementation": "slow"}, "cannot be created", ""),
    ({"output": "pooler_output"}, "the model gives no `pooler_output`; it gives logits", ""),
    ({"inputs": {"pixel_values": "tokens"}}, "has no input `pixel_values`", "it takes input_ids"),
    ({"pretrained": True}, "`pretrained` takes a `path`", "`path: FOLDER`"),
    ({"path": "nobody/no-such-model"}, "neither a folder nor in the cache", "hf download nobody/no-such-model"),
    ({"path": "empty"}, "there is neither model.safetensors nor", "`pretrained: false`"),
]  # fmt: skip


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("change", "message", "hint"), MISTAKES, ids=[words for _, words, _ in MISTAKES])
def test_what_is_wrong_with_a_node_is_one_line(folder: Path, change: dict[str, Any], message: str, hint: str) -> None:
    node = {"type": "transformers", "config": made.CONFIGS["llama"], "input": "tokens"}
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "empty" / "config.json").write_text(json.dumps(made.CONFIGS["llama"]))
    if "path" in change:
        del node["config"]
    if "inputs" in change:
        del node["input"]
    found = said(written(folder, node | change))
    assert message in found[0], found
    assert hint in found[1], found


@pytest.mark.timeout(200)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's of transformers 5
def test_an_adapter_on_a_whole_model_leaves_out_its_tied_head(folder: Path) -> None:
    """As PEFT's `all-linear` does; the others are adapted, and a step trains them alone."""
    import peft

    base = made.publish("qwen3", folder / "tied")
    recipe = made.recipe({"type": "transformers", "path": "tied", "input": "tokens"}, "next")
    recipe["model"]["parameters"] = {"net": {"adapter": {"type": "lora", "rank": 4}}}
    path = folder / "adapted.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    run = dt.load(path, set={"training.steps": 1}).run(quiet=True)
    theirs: Any = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules="all-linear"))
    wanted = {name.removeprefix("base_model.model.") for name, _ in theirs.named_parameters() if "lora_" in name}
    ours = {name for name, item in run.module().named_parameters() if "lora_" in name}
    assert ours == {f"net.{name.replace('.default', '')}" for name in wanted}


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("name", "inputs", "warns"),
    [
        ("bert", {"input_ids": "text"}, True),
        ("bert", {"input_ids": "cut"}, True),
        ("bert", {"input_ids": "text", "attention_mask": "text.mask"}, False),
        ("llama", {"input_ids": "text"}, False),  # no token sees what stands behind it
    ],
)
def test_padding_that_an_encoder_sees_is_told(tmp_path: Path, name: str, inputs: dict[str, str], warns: bool) -> None:
    (tmp_path / "notes.csv").write_text("note,kind\ngood,0\nvery bad,1\nso so,2\n")
    config = made.CONFIGS[name] | {"vocab_size": 256}
    if name == "llama":
        config |= {"architectures": ["LlamaForSequenceClassification"], "num_labels": 3, "pad_token_id": 0}
    node = {"type": "transformers", "config": config, "inputs": inputs}
    recipe = made.recipe(node, "kind") | {
        "data": {
            "source": {"type": "csv", "path": "notes.csv"},
            "fields": {
                "text": {"type": "tokens", "column": "note", "tokenizer": "bytes", "length": 8},
                "kind": {"type": "category", "column": "kind", "num_classes": 3},
            },
        }
    }
    if "cut" in inputs.values():
        recipe["model"]["graph"] = {"cut": "text[:, :6]", **recipe["model"]["graph"]}
    recipe["training"]["global_batch_size"] = 3
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    found = [each for each in dt.load(path).lint() if each.code == "R139"]
    assert len(found) == warns
    if warns:
        assert found[0].message == ("`net` sees the padding of `text`: its input `attention_mask` is not connected")


def test_a_library_that_is_not_here_names_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "timm" else real(name, *more))
    message, hint = said(written(folder, made.node_of("test_vit")[0], "label"))
    assert message == "`timm` needs the package timm"
    assert hint == machine.install("timm")
    monkeypatch.setattr(importlib.util, "find_spec", real)
    monkeypatch.setattr("importlib.import_module", lambda name, *more: 1 / 0)
    message, _ = said(written(folder, made.node_of("test_vit")[0], "label"))
    assert message == "the package timm is installed but cannot be imported: division by zero"


# -- every mode


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    known: dict[str, Recording] = {}

    def of(name: str) -> tuple[dict[str, Any], Recording]:
        node, target = made.node_of(name)
        told = made.recipe(node, target)
        told["training"]["precision"] = "fp64"
        if name not in known:
            known[name] = record(folder, told)
        return told, known[name]

    return of


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*made.CONFIGS, *made.TIMM])
def test_gradients_are_those_of_one_process(folder: Path, reference: Any, name: str, way: str) -> None:
    told, wanted = reference(name)
    found = record(folder, merged(told, WAYS[way]))
    assert largest_difference(wanted, found) <= LIMITS.get(name, 1e-10)
    assert found.losses == pytest.approx(wanted.losses, rel=1e-9)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["single", "fsdp"])
@pytest.mark.parametrize("policy", ["blocks", "all", "selective"])
def test_activations_are_computed_again_unit_by_unit(folder: Path, reference: Any, policy: str, way: str) -> None:
    told, wanted = reference("qwen3")
    again = {"training": {"activation_checkpointing": policy}}
    found = record(folder, merged(merged(told, again), WAYS.get(way, {})))
    assert largest_difference(wanted, found) <= 1e-10


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_model_too_large_to_be_tried_has_its_shapes_and_idle_parameters(folder: Path) -> None:
    """BERT of its usual size: 110 M parameters, traced without memory."""
    node = {"type": "transformers", "config": {"model_type": "bert"}, "architecture": "BertModel", "input": "tokens"}
    told = written(folder, node | {"output": "last_hidden_state"}, "label")
    graph = {"net": node | {"output": "last_hidden_state"}, "scores": "net[:, 0]"}
    text = yaml.safe_load(told.read_text()) | {"model": {"graph": graph}}
    text["objective"]["loss"] = {"type": "cross_entropy", "input": "scores", "target": "label"}
    told.write_text(yaml.safe_dump(text))
    plan = dt.load(told).plan().plan
    assert plan.graph.node("net").outputs["output"].shape == (made.TOKENS, 768)
    assert {each.name for each in plan.parameters if each.idle} == {"net.pooler.dense.weight", "net.pooler.dense.bias"}
    assert plan.layout.units == ("net.embeddings", *(f"net.encoder.layer.{layer}" for layer in range(12)))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stage_of_a_pipeline_holds_a_model_whole(folder: Path) -> None:
    node, target = made.node_of("bert")
    told = made.recipe(node | {"architecture": "BertModel", "output": "last_hidden_state"}, target)
    graph = told["model"]["graph"] | {
        "first": "net[:, 0]",
        "hidden": {"type": "linear", "out_features": 16},
        "scores": {"type": "linear", "out_features": 3},
    }
    told = merged(told, {"model": {"graph": graph}, "training": {"precision": "fp64"}})
    told["objective"]["loss"]["input"] = "scores"
    found = record(folder, merged(told, on_pipeline(2, "1f1b", 2)))
    assert largest_difference(record(folder, told), found) <= 1e-10
