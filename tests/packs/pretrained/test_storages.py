"""Frozen weights held in fewer bits: a run on them is one on what is left of them, in every mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import declarative_train as dt
from declarative_train import recipe as recipe_room
from declarative_train.components.layers.modules import packed
from declarative_train.components.layers.modules.packed import Packed, find_packed
from declarative_train.components.storages import StorageName, storage_bytes
from declarative_train.inference.evaluate import evaluate
from declarative_train.inference.trained import Trained, open_trained
from declarative_train.packs.export.export import export
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.planner.footprint.live_bytes import LiveBytes
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, write_data, write_recipe
from tests.engine.runs import assert_same_tensors, checkpoints, go

STEPS = 21


def tuned(storage: StorageName | None, precision: str = "fp32", **layers: Any) -> dict[str, Any]:
    held = {} if storage is None else {"layers": {"storage": storage}, "hidden": {"storage": storage}}
    parameters = {
        **held,
        "up": {**held.get("layers", {}), "adapter": {"type": "lora", "rank": 3}},
        "lora_B": {"init": {"type": "normal", "std": 0.3}},
        "logits": {"frozen": False},
    }
    model = {"weights": "base.safetensors", "parameters": parameters}
    return merged(DEEP, {"model": model, "training": {"precision": precision, **layers}})


def write_base(folder: Path, storage: StorageName | None = None, dtype: torch.dtype = torch.float32) -> None:
    """With `storage`, what is left of it."""
    write_data(folder)
    model = dt.load(str(write_recipe(folder, DEEP, "plain.yaml"))).plan().module()
    tensors = {name: item.to(dtype) for name, item in model.state_dict().items()}
    for name, item in tensors.items():
        if storage is not None and item.ndim == 2 and "logits" not in name:
            tensors[name] = Packed(storage, item.shape[1], item.device).round_trip(item)
    save_file({name: item.clone() for name, item in tensors.items()}, folder / "base.safetensors")


def trained_of(done: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = checkpoints(done.run_dir)[STEPS].tensors
    return found


def on_what_is_left(folder: Path, storage: StorageName, precision: str) -> dict[str, torch.Tensor]:
    other = folder / "left"
    other.mkdir()
    write_base(other, storage)
    return trained_of(go(other, tuned(None, precision)))


CELLS = [
    ("nf4", "single"),
    ("nf4", "fsdp 2"),
    *(pytest.param("nf4", way, marks=pytest.mark.long) for way in WAYS if way not in ("single", "fsdp 2")),
    *(
        pytest.param(storage, way, marks=pytest.mark.long)
        for storage in ("bf16", "int8")
        for way in ("single", "ddp 2", "fsdp 2", "pipeline 2")
    ),
]


@pytest.mark.parametrize(("storage", "way"), CELLS)
def test_a_run_is_the_one_on_what_is_left(tmp_path: Path, storage: StorageName, way: str) -> None:
    wanted = on_what_is_left(tmp_path, storage, "fp64")
    write_base(tmp_path)
    found = trained_of(go(tmp_path, tuned(storage, "fp64"), WAYS[way]))
    assert set(found) == set(wanted)
    assert not any(name.endswith("up.weight") for name in found)  # which the base has
    assert_same_tensors(found, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("way", ["single", pytest.param("fsdp 2", marks=pytest.mark.long)])
@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.long), "bf16"])
def test_in_the_other_precisions(tmp_path: Path, precision: str, way: str) -> None:
    wanted = on_what_is_left(tmp_path, "nf4", precision)
    write_base(tmp_path)
    found = trained_of(go(tmp_path, tuned("nf4", precision), WAYS[way]))
    close = 1e-5 if precision == "fp32" else 3e-2
    parameters = {name for name in found if name.startswith("model/")}
    assert_same_tensors(
        {name: found[name] for name in parameters}, {name: wanted[name] for name in parameters}, rtol=close, atol=close
    )


def test_it_is_used_and_given_away_as_what_is_left(tmp_path: Path) -> None:
    write_base(tmp_path)
    done = go(tmp_path, tuned("nf4"))
    whole = go(tmp_path, merged(tuned("nf4"), {"checkpoint": {"base": "whole"}}))
    ours, other = open_trained(done.run_dir), open_trained(whole.run_dir)
    assert_same_tensors(ours.module().state_dict(), other.module().state_dict())
    left = tmp_path / "left"
    left.mkdir()
    write_base(left, "nf4")
    base = load_file(left / "base.safetensors")
    held = ours.module().state_dict()
    assert torch.equal(held["layers.2.up.weight"], base["layers.2.up.weight"])
    exported = load_file(export(ours, "safetensors", tmp_path / "out").folder / "model.safetensors")
    assert set(exported) == set(base)
    model = dt.load_plan(str(tmp_path / "out" / "plan.json")).module()  # as the load.py next to it does
    model.load_state_dict(exported)
    assert exported["layers.2.up.weight"].dtype == torch.float32
    a, b = (held[f"layers.2.up.lora_{each}.weight"].double() for each in "AB")
    wanted = base["layers.2.up.weight"].double() + b @ a * 8 / 3
    assert (exported["layers.2.up.weight"] - wanted).abs().max() < 1e-6
    manifest = json.loads((Path(other.path) / "manifest.json").read_text())
    assert manifest["shapes"]["layers.2.up.weight"] == [16, 16]


@pytest.mark.parametrize(
    ("precision", "base"),
    [
        ("fp32", "reference"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("bf16", "reference"), ("fp64", "whole"))),
    ],
)
def test_it_is_used_as_it_was_held(tmp_path: Path, precision: str, base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the memory that training needed for it, with the same answers; merged, in that of the model alone."""
    monkeypatch.setattr(packed, "AT_ONCE", 1 << 14)
    width, depth = 256, 16
    graph = {"hidden": {"out_features": width}, "layers": {"repeat": depth}}
    wide = {"model": {"blocks": {"block": {"graph": {"up": {"out_features": width}}}}, "graph": graph}}
    write_data(tmp_path)
    plain = dt.load(str(write_recipe(tmp_path, merged(DEEP, wide), "plain.yaml"))).plan().module()
    save_file(dict(plain.state_dict()), tmp_path / "base.safetensors")
    training = {"ema": {"decay": 0.9}, "epochs": None, "steps": 1, "lr_schedule": None}
    averaged = {"training": training, "checkpoint": {"base": base}}
    done = go(tmp_path, merged(merged(tuned("nf4", precision), wide), averaged))
    assert done.code == 0
    num_bytes = sum(item.numel() for item in plain.parameters()) * (8 if precision == "fp64" else 4)
    for weights in ("trained", "ema"):
        trained = open_trained(done.run_dir, weights=weights)
        dense, held = (built(trained, keep_quantized) for keep_quantized in (False, True))
        assert len(find_packed(held[0])) == depth + 1
        assert find_packed(dense[0]) == {}
        whole, least = (sum(item.nbytes for item in made[0].state_dict().values()) for made in (dense, held))
        one = width * width * 4
        assert least < 0.3 * whole
        assert held[1] < least + depth * 2048 + 4 * one, "one weight at a time is whole"
        row = torch.rand(3, 20, dtype=dense[0].get_parameter("logits.weight").dtype)
        with torch.no_grad():
            assert torch.equal(dense[0](row)[0], held[0](row)[0])
        merged_peak = built(trained.merge_adapters(), False)[1]
        assert num_bytes <= merged_peak < num_bytes + 8 * one * (2 if precision == "fp64" else 1)
    found = evaluate(open_trained(done.run_dir))
    assert found.values["validation/loss"] == pytest.approx(found.logged["validation/loss"], rel=1e-6)


def built(trained: Trained, keep_quantized: bool) -> tuple[torch.nn.Module, int]:
    """And the most bytes that lived meanwhile."""
    with LiveBytes() as live:
        module = trained.module(keep_quantized=keep_quantized)
    return module, live.peak


@pytest.mark.parametrize(
    ("base", "storage", "way"),
    [
        ("reference", None, "single"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                ("reference", "nf4", "single"),
                ("reference", "nf4", "fsdp 2"),
                ("reference", None, "fsdp 2"),
                ("whole", None, "single"),
            )
        ),
    ],
)
def test_a_new_run_starts_from_what_the_run_was_trained_beside(
    tmp_path: Path, base: str, storage: StorageName | None, way: str
) -> None:
    """However it holds it, whether the checkpoint names its base or has it."""
    write_base(tmp_path)
    recipe = merged(tuned("nf4", "fp64"), {"checkpoint": {"base": base}})
    done = go(tmp_path, recipe)
    wanted = open_trained(done.run_dir).module().state_dict()
    in_file = load_file(tmp_path / "base.safetensors")["layers.2.up.weight"]
    assert (wanted["layers.2.up.weight"] - in_file).abs().max() > 0.01
    still = {"optimizer": {"type": "sgd", "lr": 1e-30}, "steps": 1, "epochs": None, "lr_schedule": None}
    again = merged(tuned(storage, "fp64", **still), {"model": {"weights": str(done.run_dir)}})
    found = go(tmp_path, again, WAYS[way])
    assert found.code == 0
    ours = open_trained(found.run_dir)
    assert_same_tensors(ours.module().state_dict(), wanted, rtol=0, atol=1e-25)
    loss = evaluate(open_trained(done.run_dir)).values["validation/loss"]
    assert ours.values["validation/loss"] == pytest.approx(loss, rel=1e-10)


@pytest.mark.parametrize(
    ("before", "after"), [("single", "single"), pytest.param("fsdp 2", "pipeline 2", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("base", [pytest.param("reference", marks=pytest.mark.long), "whole"])
def test_a_run_goes_on(tmp_path: Path, base: str, before: str, after: str) -> None:
    write_base(tmp_path)
    recipe = merged(tuned("int8", "fp64"), {"checkpoint": {"base": base}} if base == "whole" else {})
    straight = trained_of(go(tmp_path, recipe, WAYS[after]))
    first = go(tmp_path, recipe, WAYS[before], max_steps=10)
    if base == "whole":
        (tmp_path / "base.safetensors").unlink()
        write_base(tmp_path, "nf4")  # another, which is not read
    again = go(tmp_path, recipe, WAYS[after], resume=str(first.run_dir))
    assert again.code == 0
    close = 0 if before == after else 1e-10
    assert_same_tensors(trained_of(again), straight, rtol=close, atol=close)


def test_weights_without_a_file_are_drawn_and_then_held(tmp_path: Path) -> None:
    write_data(tmp_path)
    recipe = merged(tuned("nf4"), {"model": {"weights": None}})
    model = dt.load(str(write_recipe(tmp_path, recipe))).plan().module()
    plain = dt.load(str(write_recipe(tmp_path, DEEP, "plain.yaml"))).plan().module()
    packed = find_packed(model)
    assert set(packed) == {"hidden.weight", *(f"layers.{at}.up.weight" for at in range(6))}
    for name, item in packed.items():
        weight = plain.get_parameter(name)
        assert torch.equal(item.unpack(model.get_parameter(name), torch.float32), item.round_trip(weight))


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"logits": {"storage": "nf4"}}, "U125", "`logits.weight` is trained, so it cannot be stored in nf4"),
        ({"norm": {"storage": "int8"}}, "U126", "select some of `hidden.weight`"),
        (
            {
                "layers.1.up.weight": {"tie": "layers.0.up.weight"},
                "layers.0.up": {"frozen": True, "storage": "bf16"},
            },
            "U127",
            "shares its values with `layers.1.up.weight`, which is not",
        ),
    ],
)
def test_what_cannot_be_held_so(tmp_path: Path, parameters: dict[str, Any], code: str, words: str) -> None:
    write_data(tmp_path)
    recipe = merged(DEEP, {"model": {"parameters": parameters}})
    loaded = recipe_room.load(str(write_recipe(tmp_path, recipe)))
    assert loaded.recipe is not None
    found = [item for item in compile_plan(loaded.recipe)[1] if item.is_error]
    assert [item.code for item in found] == [code]
    assert words in f"{found[0].message} {found[0].help}"


def test_a_plan_says_what_is_held_how(tmp_path: Path) -> None:
    write_data(tmp_path)
    plan = compiled(tmp_path, merged(tuned("nf4"), {"model": {"weights": None}}))
    assert {item.storage for item in plan.parameters if item.name.endswith("norm.weight")} == {None}
    assert {item.storage for item in plan.parameters if item.name.endswith("up.weight")} == {"nf4"}


LLAMA = """
name: made
data:
  source: {type: synthetic, kind: tokens, vocabulary: 512, rows: 4000}
  window: {length: 17, stride: 16}
  fields: {tokens: {column: tokens, rows: ":-1"}, next: {column: tokens, rows: "1:"}}
model:
  graph:
    lm: {type: llama, vocabulary: 512, layers: 3, width: 128, heads: 4, kv_heads: 2, hidden: 384, input: tokens}
  parameters: {lm: {storage: nf4, adapter: {type: lora, rank: 4, alpha: 8}}}
objective: {loss: {type: cross_entropy, input: lm, target: next}}
training:
  steps: 4
  global_batch_size: 4
  precision: PRECISION
  activation_checkpointing: blocks
  optimizer: {type: adamw, lr: 2e-4}
parallelism: MODE
layout: {device: cpu, gpus: GPUS}
"""


@pytest.mark.parametrize(
    ("mode", "gpus", "precision"),
    [
        ("single", "1", "fp32"),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (("single", "1", "bf16"), ("fsdp", "2", "bf16"), ("ddp", "2", "fp32"))
        ),
    ],
)
def test_what_lives_is_what_the_plan_says(tmp_path: Path, mode: str, gpus: str, precision: str) -> None:
    from tests.planner.measure import compiled as plan_of
    from tests.planner.measure import measure_plan

    path = tmp_path / "held.yaml"
    text = LLAMA.replace("PRECISION", precision).replace("MODE", mode).replace("GPUS", gpus)
    path.write_text(text)
    plan = plan_of(path, "nf4")
    held = measure_plan("nf4", plan)
    assert held.is_close, (held.predicted, held.measured)
    path.write_text(text.replace("storage: nf4, ", ""))
    plain = measure_plan("float32", plan_of(path, "float32"))
    saved = plain.measured.by_class["parameters"] - held.measured.by_class["parameters"]
    weights = [item for item in plan.parameters if item.storage is not None]
    assert sum(item.num_elements for item in weights) > 500_000
    in_bytes = sum(4 * item.num_elements - storage_bytes("nf4", item.shape) for item in weights)
    tables = len(weights) * 256 * 2 * 4  # of levels: one next to each weight
    assert saved == in_bytes // (2 if mode == "fsdp" else 1) - tables


def tied(folder: Path, chunks: int | None, *changes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A table that is the head, too, held in nf4 beside layers with adapters."""
    from tests.packs.pretrained.test_adapters import recipe

    parameters = {
        "embed": {"storage": "nf4"},
        "logits.weight": {"storage": "nf4", "tie": "embed.weight"},
        "layers": {"storage": "int8", "adapter": {"type": "lora", "rank": 3}},
        "lora_B": {"init": {"type": "normal", "std": 0.3}},
    }
    made = merged(recipe(parameters), {"training": {"precision": "fp64"}, "checkpoint": {"every": "2 steps"}})
    if chunks is not None:
        made["objective"]["loss"]["chunks"] = chunks
    random = np.random.default_rng(3)
    np.savez(folder / "tokens.npz", tokens=random.integers(0, 32, (32, 12)), next=random.integers(0, 32, (32, 12)))
    done = go(folder, made, *changes)
    assert done.code == 0
    found: dict[str, torch.Tensor] = checkpoints(done.run_dir)[4].tensors
    return found


@pytest.mark.parametrize(
    ("way", "chunks"),
    [
        ("single", 3),
        *(pytest.param(way, None, marks=pytest.mark.long) for way in ("ddp 2", "fsdp 2", "pipeline 2")),
        *(pytest.param(way, 3, marks=pytest.mark.long) for way in ("fsdp 2", "pipeline 2")),
    ],
)
def test_a_tied_table_and_the_head_of_a_loss_in_chunks(tmp_path: Path, way: str, chunks: int | None) -> None:
    wanted = tied(tmp_path, None)
    assert wanted["model/embed.weight"].shape == (32, 16)  # drawn, so that the checkpoint holds what is left of it
    mode = {"pipeline": {"stages": 2, "schedule": "1f1b", "microbatches": 4, "cut_before": ["layers.1"]}}
    changes = {"parallelism": mode, "layout": {"gpus": 2}} if way == "pipeline 2" else WAYS[way]
    assert_same_tensors(tied(tmp_path, chunks, changes), wanted, rtol=1e-10, atol=1e-10)
