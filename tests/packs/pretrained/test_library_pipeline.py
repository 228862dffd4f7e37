"""Models of transformers in a pipeline, which is cut between their layers by the library's plan for the class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import declarative_train as dt
from declarative_train.packs.export.export import export
from declarative_train.tools.verify.plan_checks import check_plan
from tests.engine.made_recipes import compiled, merged
from tests.engine.parity import largest_difference, record
from tests.engine.runs import check_resume
from tests.packs.pretrained import library_models as made
from tests.packs.pretrained.test_library_experts import config_of
from tests.packs.pretrained.test_library_tensor import CONFIGS, DECODER, recipe_of
from tests.thread_ranks import use_float64


def pipeline(schedule: str = "1f1b", stages: int = 2, **data: int) -> dict[str, Any]:
    cut = {"stages": stages, "microbatches": stages, "schedule": schedule}
    mode = {"pipeline": cut} | ({"data": data} if data else {})
    return {"parallelism": mode, "layout": {"gpus": 4 if data else 2}}


WAYS = {
    "1f1b": pipeline(),
    "1f1b x ddp": pipeline(replicate=2),
    "1f1b x shard": pipeline(shard=2),
    "interleaved": pipeline("interleaved_1f1b", 4),
    "zbv": pipeline("zbv", 4),
}
MODELS = CONFIGS | {
    "gpt_neox": made.CONVERTED["gpt_neox"] | {"model_type": "gpt_neox"},
    "qwen3_moe": config_of("qwen3_moe"),
}
NORMAL = (("llama", "1f1b"), ("gpt_neox", "1f1b"), ("qwen3", "1f1b x shard"))  # the last has a tied head


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pipeline")
    made.write_data(path)
    return path


CELLS = [
    pytest.param(name, way, marks=() if (name, way) in NORMAL else pytest.mark.long) for name in MODELS for way in WAYS
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "way"), CELLS)
def test_gradients_are_those_of_one_process(folder: Path, name: str, way: str) -> None:
    """Compare three clipped steps of AdamW."""
    recipe = recipe_of(MODELS[name])
    with use_float64():
        wanted, found = record(folder, recipe), record(folder, merged(recipe, WAYS[way]))
    assert largest_difference(wanted, found) <= 1e-10
    assert found.losses == pytest.approx(wanted.losses, rel=1e-12)


@pytest.mark.timeout(200)
def test_the_stages_are_cut_between_layers(folder: Path) -> None:
    recipe = merged(recipe_of(CONFIGS["qwen3"]), pipeline())
    recipe["parallelism"]["pipeline"]["cut_before"] = ["net.model.layers.1"]
    plan = compiled(folder, recipe)
    assert plan.layout.pipeline is not None
    assert plan.layout.pipeline.stages == (
        ("net.model.embed_tokens", "net.model.layers.0"),
        ("net.model.layers.1", "net.model.norm", "net.lm_head"),
    )
    assert plan.layout.pipeline.wires == (("net.model.layers.0",),)
    assert [item.name for item in plan.layout.pipeline.shared] == ["net.model.embed_tokens.weight"]
    assert not check_plan(plan).problems
    alone = compiled(folder, recipe_of(CONFIGS["qwen3"]))
    assert (plan.fingerprint, plan.flops) == (alone.fingerprint, alone.flops)
    assert {item.name: item.tie for item in plan.parameters if item.tie} == {
        "net.lm_head.weight": "net.model.embed_tokens.weight"
    }


@pytest.mark.timeout(300)
def test_every_stage_reads_the_mask_of_padding(folder: Path) -> None:
    """Give the model a mask, which the layers of both stages read from the batch."""
    recipe = recipe_of(CONFIGS["llama"])
    recipe["data"]["fields"]["keep"] = {"column": "keep", "dtype": "bool"}
    node = recipe["model"]["graph"]["net"]
    del node["input"]
    node["inputs"] = {"input_ids": "tokens", "attention_mask": "keep"}
    with use_float64():
        wanted, found = record(folder, recipe), record(folder, merged(recipe, pipeline()))
        unmasked = record(folder, recipe_of(CONFIGS["llama"]))
    assert largest_difference(wanted, found) <= 1e-10
    assert largest_difference(wanted, unmasked) > 1e-3


GRANITE = made.LLAMA | {"model_type": "granite", "embedding_multiplier": 2.0, "architectures": ["GraniteForCausalLM"]}
OPT = {"model_type": "opt", "vocab_size": 64, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2}
OPT |= {"num_attention_heads": 4, "max_position_embeddings": 32, "word_embed_proj_dim": 32, "dropout": 0.0}
WHOLE = [
    pytest.param(
        OPT | {"architectures": ["OPTForCausalLM"]},
        "transformers has no pipeline plan for a `OPTForCausalLM`",
        id="plan",
    ),
    pytest.param(GRANITE, "`model.layers.0` does not read the output of `model.embed_tokens`", id="scaled"),
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("config", "reason"), WHOLE)
def test_lint_says_why_a_model_stays_in_one_stage(folder: Path, config: dict[str, Any], reason: str) -> None:
    path = folder / "whole.yaml"
    recipe = merged(made.recipe(DECODER | {"config": config}, "next"), pipeline())
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    (found,) = dt.load(path).lint()
    assert (found.code, found.is_error) == ("P114", True)
    assert found.message == f"`net` stays in one stage: {reason}"
    recipe["model"]["graph"]["last"] = {"type": "linear", "out_features": 64}
    recipe["objective"]["loss"]["input"] = "last"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    assert [(each.code, each.is_error) for each in dt.load(path).lint()] == [("P114", False)]


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("before", "after"), [("1f1b", "single"), ("single", "1f1b x shard"), ("1f1b x shard", "1f1b")]
)
def test_a_checkpoint_goes_on_in_another_layout(tmp_path: Path, before: str, after: str) -> None:
    made.write_data(tmp_path)
    recipe = merged(recipe_of(CONFIGS["qwen3"]), {"name": "made", "training": {"steps": 6}})
    ways = WAYS | {"single": {}}
    check_resume(tmp_path, recipe, ways[before], ways[after])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["qwen3", pytest.param("gpt_neox", marks=pytest.mark.long)])
def test_the_export_has_the_values_of_the_run(folder: Path, name: str) -> None:
    """Compare all tensors to the bit; transformers reads them. The run begins with published weights."""
    import transformers

    base = made.publish(name, folder / name)
    path = folder / "recipe.yaml"
    recipe = merged(made.recipe(DECODER | {"path": name}, "next"), pipeline())
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    run = dt.load(path).run(quiet=True)
    kind = getattr(transformers, type(base).__name__)
    back = kind.from_pretrained(export(run.trained(), "huggingface", folder / f"back-{name}").folder)
    state, theirs, begun = run.module().get_submodule("net").state_dict(), back.state_dict(), base.state_dict()
    assert state.keys() == theirs.keys() == begun.keys()
    assert [each for each in theirs if not torch.equal(theirs[each], state[each])] == []
    weights = [each for each in theirs if each.endswith("weight")]
    assert all(0 < float((theirs[each] - begun[each]).abs().max()) < 0.2 for each in weights)
