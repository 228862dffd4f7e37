"""Adapters of linear maps, next to PEFT's: the same base and the same adapter give the same outputs and gradients."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from declarative_train import recipe as recipe_room
from declarative_train.graph.build import build
from declarative_train.graph.cost import work_of
from declarative_train.graph.initialise import initialise
from declarative_train.graph.merge import adapters_of, without_adapters
from declarative_train.packs.pretrained.adapters.lora import Lora
from declarative_train.packs.pretrained.adapters.modules.lora import LoraLinear
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.text.describe import describe
from tests.engine.made_recipes import compiled, write_recipe
from tests.later import Later

peft = Later("peft")
CLOSE = 3e-6  # values to 3 in float32: a few units in the last place, whose order of sums depends on the tests before
TOKENS: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "npy", "path": "tokens.npz"},
        "fields": {"tokens": {"column": "tokens", "dtype": "int64"}, "next": {"column": "next", "dtype": "int64"}},
    },
    "model": {
        "blocks": {
            "block": {
                "params": {"fused": True},
                "inputs": ["x"],
                "graph": {
                    "norm": {"type": "rms_norm"},
                    "attn": {"type": "self_attention", "heads": 4, "kv_heads": 2, "causal": True}
                    | {"rotary": {"base": 10000}, "fused": "{{ params.fused }}"},
                    "mid": "x + attn",
                    "gate": {"type": "linear", "out_features": 24, "bias": False},
                    "down": {"type": "linear", "out_features": 16, "input": "gate"},
                    "out": "mid + silu(down)",
                },
                "output": "out",
            }
        },
        "graph": {
            "embed": {"type": "embedding", "num_embeddings": 32, "embedding_dim": 16, "input": "tokens"},
            "layers": {"type": "block", "repeat": 2},
            "logits": {"type": "linear", "out_features": 32, "bias": False},
        },
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "next"}},
    "training": {"steps": 4, "global_batch_size": 8, "optimizer": {"type": "adamw", "lr": 1e-2}},
    "layout": {"device": "cpu"},
    "logging": {"dir": "runs"},
}


def recipe(parameters: dict[str, Any], *, fused: bool = True) -> dict[str, Any]:
    found = copy.deepcopy(TOKENS)
    found["model"]["parameters"] = parameters
    found["model"]["graph"]["layers"]["fused"] = fused
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    np.savez(tmp_path / "tokens.npz", **{name: random.integers(0, 32, (32, 12)) for name in ("tokens", "next")})
    return tmp_path


def started(plan: Plan) -> torch.nn.Module:
    model = build(plan.graph)
    initialise(model, plan.graph, plan.parameters, plan.seed)
    return model


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("kind", "rslora"), [("lora", True), ("lora", False), ("dora", False)])
def test_outputs_gradients_and_the_merged_weights_are_those_of_peft(
    folder: Path, fused: bool, kind: str, rslora: bool
) -> None:
    adapter = {"type": kind, "rank": 4, "alpha": 6, "rslora": rslora}
    parameters = {"layers": {"adapter": adapter}, "lora_B": {"init": {"type": "normal", "std": 0.3}}}
    plan = compiled(folder, recipe(parameters, fused=fused))
    model = started(plan)
    held = dict(model.named_parameters())
    for part in model.modules():
        if isinstance(part, LoraLinear) and part.has_magnitude:
            with torch.no_grad():
                part.start_from_weights("", ())
                part.lora_magnitude_vector *= 1 + 0.3 * torch.randn(part.out_features)
    base = build(without_adapters(plan.graph))
    base.load_state_dict({name: item for name, item in held.items() if ".lora_" not in name})
    targets = ["qkv", "query", "key", "value", "out", "gate", "down"]
    config = peft.LoraConfig(r=4, lora_alpha=6, use_rslora=rslora, use_dora=kind == "dora", target_modules=targets)
    theirs = peft.get_peft_model(base, config)
    spelt = {".default": "", "lora_magnitude_vector.weight": "lora_magnitude_vector"}
    named = dict(theirs.named_parameters())
    for theirs_word, word in spelt.items():
        named = {name.replace(theirs_word, word): item for name, item in named.items()}
    added = {name for name in held if ".lora_" in name}
    assert {f"base_model.model.{name}" for name in added} == {name for name in named if ".lora_" in name}
    assert len(added) == 2 * (3 if kind == "dora" else 2) * (4 if fused else 6)
    with torch.no_grad():
        for name in added:
            named[f"base_model.model.{name}"].copy_(held[name])
    frozen = {item.name for item in plan.parameters if item.frozen}
    for name, item in held.items():
        item.requires_grad_(name not in frozen)
    tokens = torch.randint(0, 32, (3, 12))
    (ours,), (wanted,) = model(tokens), theirs.base_model.model(tokens)
    assert (ours - wanted).abs().max() < CLOSE
    for outputs in (ours, wanted):
        torch.nn.functional.cross_entropy(outputs.flatten(0, 1), tokens.roll(-1, 1).flatten()).backward()
    for name, item in held.items():
        other = named[f"base_model.model.{name}"] if name in added else None
        assert (item.grad is None) == (other is None), name
        if other is not None:
            assert item.grad is not None
            assert other.grad is not None
            assert item.grad.abs().max() > 0
            assert (item.grad - other.grad).abs().max() < CLOSE, name
    merged = theirs.merge_and_unload()  # type: ignore[operator]
    for name, part in model.named_modules():
        if isinstance(part, LoraLinear):
            own = {own: held[f"{name}.{own}"] for own in part.adapter.shapes((part.out_features, part.in_features))}
            assert (part.adapter.merge(part.weight, own) - merged.get_submodule(name).weight).abs().max() < CLOSE


def test_the_start_is_that_of_the_base_and_drawn_by_name(folder: Path) -> None:
    plan = compiled(folder, recipe({"attn": {"adapter": {"type": "lora", "rank": 4}}}))
    model, tokens = started(plan), torch.randint(0, 32, (3, 12))
    bare = build(without_adapters(plan.graph))
    bare.load_state_dict({name: item for name, item in model.state_dict().items() if ".lora_" not in name})
    assert torch.equal(model(tokens)[0], bare(tokens)[0])
    a = [model.get_parameter(f"layers.{at}.attn.qkv.lora_A.weight") for at in (0, 1)]
    bound = 1 / 16**0.5  # torch's kaiming_uniform_ with a = sqrt(5), which PEFT asks for
    assert all(0.8 * bound < item.abs().max() <= bound for item in a)
    assert not torch.equal(*a)
    assert torch.equal(started(plan).get_parameter("layers.1.attn.qkv.lora_A.weight"), a[1])


def test_what_is_trained_and_how(folder: Path) -> None:
    parameters = {
        "*": {"init": {"type": "normal", "std": 0.02}, "weight_decay": 0.0},
        "attn": {"adapter": {"type": "lora", "rank": 4}, "lr_scale": 2.0},
        "lora_B": {"lr_scale": 16.0},
        "logits": {"frozen": False},
    }
    plan = compiled(folder, recipe(parameters))
    found = {item.name: item for item in plan.parameters}
    trained = {name for name, item in found.items() if not item.frozen}
    assert trained == {
        "logits.weight",
        *(f"layers.{at}.attn.{m}.lora_{ab}.weight" for at in (0, 1) for m in ("qkv", "out") for ab in "AB"),
    }
    b = found["layers.0.attn.qkv.lora_B.weight"]
    assert (b.init, b.lr_scale, b.weight_decay) == (None, 16.0, 0.0)
    assert found["layers.0.attn.qkv.lora_A.weight"].lr_scale == 2.0
    assert found["layers.0.attn.qkv.weight"].init is not None


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"norm": {"adapter": {"type": "lora"}}}, "U120", "linear maps are `layers.0.attn.qkv`"),
        ({"attn": {"adapter": {"type": "lora"}, "frozen": False}}, "U121", "`layers.0.attn.qkv.weight` has an adapter"),
        ({"attn": {"adapter": {"type": "lora", "rank": 16}}}, "U122", "too large for its weight of 32 x 16"),
        (
            {"logits": {"adapter": {"type": "lora"}}, "logits.weight": {"tie": "embed.weight"}},
            "U123",
            "is tied to `embed.weight`",
        ),
    ],
)
def test_what_cannot_be_adapted(folder: Path, parameters: dict[str, Any], code: str, words: str) -> None:
    loaded = recipe_room.load(str(write_recipe(folder, recipe(parameters))))
    assert loaded.recipe is not None
    found = [item for item in compile_plan(loaded.recipe)[1] if item.code == code]
    assert found
    assert words in f"{found[0].message} {found[0].help}"


@pytest.mark.parametrize(
    ("exclude", "tie", "said"),
    [
        ([], False, None),
        (["logits"], False, "`logits.weight` start from random numbers"),
        (["layers.0.norm"], False, "`layers.0.norm.weight` start from random numbers"),
        (["logits"], True, "`embed.weight` start from random numbers"),  # one tensor, drawn under both names
    ],
)
def test_what_a_file_does_not_fill_is_told(folder: Path, exclude: list[str], tie: bool, said: str | None) -> None:
    made = recipe({"attn": {"adapter": {"type": "lora"}}} | ({"logits.weight": {"tie": "embed.weight"}} if tie else {}))
    made["model"]["weights"] = {"path": "base.safetensors", "exclude": exclude}
    loaded = recipe_room.load(str(write_recipe(folder, made)))
    assert loaded.recipe is not None, loaded.diagnostics
    found = [item.message for item in compile_plan(loaded.recipe)[1] if item.code == "U124"]
    assert bool(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_tied_head_is_left_out_where_others_are_met(folder: Path) -> None:
    parameters = {"*": {"adapter": {"type": "lora", "rank": 3}}, "logits.weight": {"tie": "embed.weight"}}
    plan = compiled(folder, recipe(parameters))
    assert {path.split(".")[0] for path in adapters_of(plan.graph)} == {"layers"}
    assert "logits.weight is tied to embed.weight, and has no adapter" in describe(plan)


@pytest.mark.parametrize("selector", ["layers", "attn", "layers.1"])
@pytest.mark.parametrize("fused", [True, False])
def test_the_cost_is_what_torch_counts(folder: Path, fused: bool, selector: str) -> None:
    plan = compiled(folder, recipe({selector: {"adapter": {"type": "lora", "rank": 3}}}, fused=fused))
    frozen = [item.name for item in plan.parameters if item.frozen]
    model = build(plan.graph)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            (outputs,) = model(torch.zeros(2, 12, dtype=torch.int64))
        with FlopCounterMode(display=False) as backward:
            outputs.sum().backward()
    shapes = {item.name: item.shape for item in plan.parameters}
    works = [work for each in work_of(plan.graph, shapes, frozen).values() for work in each]
    assert sum(work.forward for work in works) == forward.get_total_flops() // 2
    assert sum(work.backward for work in works) == backward.get_total_flops() // 2


def test_dropout_is_on_the_way_to_a_alone() -> None:
    base = torch.nn.Linear(64, 8)
    module = Lora(rank=4, dropout=0.5).build(base)
    torch.nn.init.ones_(module.lora_B.weight)  # type: ignore[union-attr,arg-type]
    x = torch.ones(4096, 64)
    module.eval()
    assert torch.equal(module(x)[0], module(x)[1])
    module.train()
    y = module(x)
    assert y.std(0).min() > 0
    assert (y.mean(0) - module.eval()(x)[0]).abs().max() < 0.1
