"""A model with adapters, used and given away: merged, and as PEFT's files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import declarative_train as dt
from declarative_train.core.cuts import LayerCut, ParameterCut
from declarative_train.inference.trained import Trained, UsageError, open_trained
from declarative_train.packs.export.export import export
from declarative_train.packs.pretrained.adapters.lora import Lora
from tests.engine.made_recipes import compiled
from tests.engine.runs import go
from tests.later import Later
from tests.packs.pretrained.test_adapters import folder, recipe  # noqa: F401 (a fixture)

peft = Later("peft")
ADAPTED = {
    "layers": {"adapter": {"type": "lora", "rank": 4, "alpha": 6, "dropout": 0.1}, "lr_scale": 5},
    "down": {"adapter": {"type": "lora", "rank": 2, "alpha": 6, "dropout": 0.1}},
    "logits": {"frozen": False},
}


@pytest.fixture
def trained(folder: Path) -> Trained:  # noqa: F811
    base = dt.load(str(_written(folder))).plan().module()
    save_file({name: item.clone() for name, item in base.state_dict().items()}, folder / "base.safetensors")
    made = recipe(ADAPTED)
    made["model"]["weights"] = "base.safetensors"
    done = go(folder, made)
    assert done.code == 0
    return open_trained(done.run_dir)


def test_a_joined_adapter_is_divided_by_whole_projections() -> None:
    adapter = Lora(type="lora", rank=2, split=((0, 8), (12, 16)))
    found = adapter.cut(ParameterCut(0, (8, 4, 4)))
    assert isinstance(found, LayerCut)
    assert (found.parameters, found.summed) == ({"lora_B.weight": ParameterCut(0, (8, 4))}, ("lora_A.weight",))
    assert "other rows" in str(adapter.cut(ParameterCut(0, (16,))))


def _written(folder: Path) -> Path:  # noqa: F811
    from tests.engine.made_recipes import write_recipe

    return write_recipe(folder, recipe({"*": {"init": {"type": "normal", "std": 0.1}}}), "base.yaml")


def test_merged_it_gives_the_same(trained: Trained) -> None:
    tokens = torch.randint(0, 32, (4, 12))
    merged = trained.merge_adapters()
    names = set(merged.module().state_dict())
    assert names == {name for name in trained.module().state_dict() if ".lora_" not in name}
    (ours,), (wanted,) = merged.module()(tokens), trained.module()(tokens)
    assert (ours - wanted).abs().max() < 1e-6
    changed = merged.module().get_parameter("layers.0.attn.qkv.weight")
    assert (changed - trained.module().get_parameter("layers.0.attn.qkv.weight")).abs().max() > 1e-3
    made = export(trained, "safetensors")
    assert set(load_file(made.folder / "model.safetensors")) == names


def test_peft_loads_what_is_written_and_gives_the_same(trained: Trained) -> None:
    made = export(trained, "peft")
    base = dt.load_plan(made.folder / "plan.json").module()
    theirs = peft.PeftModel.from_pretrained(base, made.folder).eval()
    tokens = torch.randint(0, 32, (4, 12))
    with torch.no_grad():
        (wanted,), (found,) = trained.module()(tokens), theirs.base_model.model(tokens)
    assert (found - wanted).abs().max() < 1e-6
    config = json.loads((made.folder / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["logits"]
    assert config["rank_pattern"] == {f"layers.{at}.down": 2 for at in (0, 1)}


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("to", ["onnx", "torch-export"])
def test_as_a_program_it_is_merged(trained: Trained, to: str) -> None:
    """One weight where the adapter was, and what the run's model gives with both."""
    made = export(trained, to)
    tokens = torch.randint(0, 32, (4, 12))
    (wanted,) = trained.module()(tokens)
    if to == "onnx":
        import onnx
        import onnxruntime

        names = [each.name for each in onnx.load(made.folder / "model.onnx").graph.initializer]
        session = onnxruntime.InferenceSession(made.folder / "model.onnx", providers=["CPUExecutionProvider"])
        (found,) = map(torch.from_numpy, session.run(None, {"tokens": tokens.numpy()}))
    else:
        program = torch.export.load(made.folder / "model.pt2")
        names = list(program.state_dict)
        found = program.module()(tokens)
        found = found[0] if isinstance(found, tuple) else found
    assert names
    assert not any("lora_" in name for name in names)
    assert (found - wanted).abs().max() < 1e-5 * max(1.0, wanted.abs().max().item())


@pytest.mark.long
@pytest.mark.parametrize("to", ["peft", "safetensors"])
def test_the_code_beside_it_runs(trained: Trained, to: str) -> None:
    made = export(trained, to)
    done = subprocess.run([sys.executable, str(made.folder / "load.py")], check=True, timeout=120, capture_output=True)
    assert (b"layers.1.down.lora_B.default.weight (16, 2)" in done.stdout) == (to == "peft")


def test_a_model_without_adapters_has_no_such_file(folder: Path) -> None:  # noqa: F811
    done = go(folder, recipe({}), max_steps=1)
    with pytest.raises(UsageError, match="no adapters"):
        export(open_trained(done.run_dir), "peft")


def test_a_plan_is_compiled_from_the_same_words(folder: Path) -> None:  # noqa: F811
    plan = compiled(folder, recipe(ADAPTED))
    assert sum(item.num_elements for item in plan.parameters if not item.frozen) < 2_000
