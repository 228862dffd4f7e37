"""Models of transformers that the ranks of `tensor` divide: gradients, start values, checkpoints, exports, and what the
plan says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import declarative_train as dt
from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.core.cuts import NodeCut, ParameterCut
from declarative_train.engine.axes.tensor import divide
from declarative_train.engine.step.model_preparation import fill, whole_model
from declarative_train.graph.read import read_layer
from declarative_train.packs.export.export import export
from declarative_train.packs.pretrained.libraries import files as read_files
from declarative_train.plan.plan import Plan
from tests.engine.made_recipes import compiled, merged
from tests.engine.parity import largest_difference, record
from tests.engine.runs import check_resume
from tests.packs.pretrained import library_models as made
from tests.thread_ranks import Meeting, ThreadPeers, compare, place_of, use_float64

TWO = {"parallelism": {"tensor": 2}, "layout": {"gpus": 2}}
WAYS: dict[str, dict[str, Any]] = {
    "tensor": TWO,
    "tensor x ddp": {"parallelism": {"tensor": 2, "data": {"replicate": 2}}, "layout": {"gpus": 4}},
    "tensor x shard": {"parallelism": {"tensor": 2, "data": {"shard": 2}}, "layout": {"gpus": 4}},
    "sequence": {"parallelism": {"tensor": {"size": 2, "sequence": True}}, "layout": {"gpus": 2}},
}
GEMMA = made.LLAMA | {"model_type": "gemma3_text", "head_dim": 8, "sliding_window": 4}
CONFIGS = {
    "llama": made.CONFIGS["llama"],
    "qwen3": made.CONFIGS["qwen3"],
    "gemma3": GEMMA | {"architectures": ["Gemma3ForCausalLM"]},
}
DECODER = {"type": "transformers", "input": "tokens"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library")
    made.write_data(path)
    return path


def recipe_of(config: dict[str, Any], **node: Any) -> dict[str, Any]:
    recipe = made.recipe(DECODER | {"config": config} | node, "next")
    training = {"precision": "fp64", "clip_grad_norm": 0.5, "ema": {"decay": 0.9}}
    return merged(recipe, {"training": training | {"optimizer": {"type": "adamw", "lr": 0.01}}})


CELLS = [
    pytest.param(name, way, marks=() if (name, way) == ("qwen3", "tensor") else pytest.mark.long)
    for name in CONFIGS
    for way in WAYS
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "way"), CELLS)
def test_gradients_are_those_of_one_process(folder: Path, name: str, way: str) -> None:
    """Compare three clipped steps of AdamW."""
    recipe = recipe_of(CONFIGS[name])
    with use_float64():
        wanted, found = record(folder, recipe), record(folder, merged(recipe, WAYS[way]))
    assert largest_difference(wanted, found) <= 1e-10
    assert found.losses == pytest.approx(wanted.losses, rel=1e-12)


def plan_of(folder: Path, recipe: dict[str, Any]) -> Plan:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return dt.load(path).plan().plan


@pytest.mark.timeout(200)
def test_the_plan_has_the_cut_of_each_parameter_or_the_reason(folder: Path) -> None:
    """Keep the attention of a model with one key head whole, and divide the rest."""
    cuts = compiled(folder, merged(recipe_of(CONFIGS["llama"] | {"num_key_value_heads": 1}), TWO)).layout.cuts
    assert cuts is not None
    assert cuts.nodes == {"net": NodeCut("inside")}
    parts = cuts.parts["net"]
    alone = NodeCut("", "its 1 key heads are not a multiple of 2 ranks")
    assert {name: parts[f"model.layers.1.{name}"] for name in ("self_attn.q_proj", "self_attn.o_proj")} == {
        "self_attn.q_proj": alone,
        "self_attn.o_proj": alone,
    }
    assert parts["model.norm"] == NodeCut("", "the library's plan leaves it whole")
    assert {name: cut for name, cut in cuts.parameters.items() if ".1." in name} == {
        "net.model.layers.1.mlp.gate_proj.weight": ParameterCut(0, (48,)),
        "net.model.layers.1.mlp.up_proj.weight": ParameterCut(0, (48,)),
        "net.model.layers.1.mlp.down_proj.weight": ParameterCut(1, (48,)),
    }
    assert parts["lm_head"].kind == "gathered"
    assert parts["model.embed_tokens"].kind == "vocabulary"


@pytest.mark.timeout(200)
def test_lint_says_once_that_a_model_stays_whole(folder: Path) -> None:
    recipe = made.recipe(*made.node_of("bert"))
    graph = recipe["model"]["graph"] | {
        "wide": {"type": "linear", "out_features": 8},
        "act": {"type": "relu"},
        "narrow": {"type": "linear", "out_features": 3},
    }
    path = folder / "bert.yaml"
    recipe = merged(recipe, {"model": {"graph": graph}, "objective": {"loss": {"input": "narrow"}}, **TWO})
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    (found,) = dt.load(path).lint()
    assert (found.code, found.is_error) == ("P110", False)
    assert "`net`: transformers has no tensor plan for a `BertForSequenceClassification`" in found.message


@pytest.mark.timeout(200)
def test_experts_are_divided_by_their_features(folder: Path) -> None:
    config = made.CONVERTED["qwen3_moe"] | {"model_type": "qwen3_moe"}
    plan = plan_of(folder, merged(made.recipe(DECODER | {"config": config}, "next"), TWO))
    assert plan.layout.cuts is not None
    cuts = plan.layout.cuts.parameters
    assert cuts["net.model.layers.0.mlp.experts.gate_up_proj"] == ParameterCut(1, (16, 16))
    assert cuts["net.model.layers.0.mlp.experts.down_proj"] == ParameterCut(2, (16,))
    tokens = torch.randint(0, 64, (2, made.TOKENS), generator=torch.Generator().manual_seed(0))
    layer: Any = plan.graph.node("net").component
    layer, inputs = read_layer(layer), {"main": plan.graph.specs()["tokens"]}
    with use_float64():
        assert compare(layer, inputs, tokens, torch.float64) <= 1e-10
    assert compare(layer, inputs, tokens, torch.float32) <= 1e-4  # with the grouped product


@pytest.mark.timeout(200)
def test_a_rank_reads_only_its_rows_of_published_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = made.publish("llama", folder / "llama").state_dict()
    recipe = merged(made.recipe(DECODER | {"path": "llama"}, "next"), TWO)
    plan, seen = compiled(folder, recipe), list[tuple[str, int, int | None]]()
    real = read_files.tensor_origin

    def watch(name: str, header: read_files.Header) -> read_files.TensorOrigin:
        origin = real(name, header)

        def read(first: int, count: int | None) -> torch.Tensor:
            seen.append((name, first, count))
            return origin.read(first, count)

        return origin._replace(read=read)

    monkeypatch.setattr("declarative_train.packs.pretrained.libraries.modules.conversion.tensor_origin", watch)
    monkeypatch.setattr("declarative_train.packs.pretrained.libraries.modules.node._BARE", {})
    held = whole_model(plan)
    assert plan.layout.cuts is not None
    divide(held, plan.layout.cuts, place_of(ThreadPeers(Meeting(2), 1, 2)))
    seen.clear()
    fill(held, plan, torch.device("cpu"), alone=True)
    assert ("model.layers.0.mlp.up_proj.weight", 24, 24) in seen
    assert ("model.embed_tokens.weight", 32, 32) in seen
    down, own = "model.layers.0.mlp.down_proj.weight", dict(held.model.named_parameters())
    assert torch.equal(own[f"net.{down}"], theirs[down][:, 24:])
    assert len(find_cuts(held.model)) == 16


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("before", "after"), [("tensor", "single"), ("single", "tensor"), ("tensor x shard", "tensor")]
)
def test_a_checkpoint_goes_on_in_another_layout(tmp_path: Path, before: str, after: str) -> None:
    made.write_data(tmp_path)
    recipe = merged(recipe_of(CONFIGS["qwen3"]), {"name": "made", "training": {"steps": 6}})
    ways = WAYS | {"single": {}}
    check_resume(tmp_path, recipe, ways[before], ways[after])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_export_has_the_values_of_the_run(folder: Path) -> None:
    """Compare all tensors to the bit; transformers reads them."""
    import transformers

    base = made.publish("qwen3", folder / "qwen3")
    path = folder / "recipe.yaml"
    recipe = merged(made.recipe(DECODER | {"path": "qwen3"}, "next"), TWO)
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    run = dt.load(path).run(quiet=True)
    back = transformers.Qwen3ForCausalLM.from_pretrained(export(run.trained(), "huggingface", folder / "back").folder)
    state = run.module().get_submodule("net").state_dict()
    theirs = back.state_dict()
    assert state.keys() == theirs.keys() == base.state_dict().keys()
    assert [name for name in theirs if not torch.equal(theirs[name], state[name])] == []
    assert not torch.equal(theirs["lm_head.weight"], base.state_dict()["lm_head.weight"])


@pytest.mark.long
@pytest.mark.timeout(300)
def test_adapters_are_divided_with_the_model(folder: Path) -> None:
    recipe = recipe_of(CONFIGS["llama"])
    recipe["model"]["parameters"] = {
        "net": {"adapter": {"type": "lora", "rank": 2}},
        "lora_B": {"init": {"type": "normal", "std": 0.3}},
    }
    with use_float64():
        wanted, found = record(folder, recipe), record(folder, merged(recipe, TWO))
    assert largest_difference(wanted, found) <= 1e-10
