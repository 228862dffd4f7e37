"""Adapters of published models: PEFT's are loaded, and ours are loaded by PEFT on the model of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import declarative_train as dt
from declarative_train.__main__ import main
from declarative_train.packs.export.export import export
from declarative_train.packs.export.export_errors import ExportFailure
from tests.later import Later
from tests.packs.pretrained import published_models as made

peft = Later("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's of transformers 5
TOKENS = torch.arange(12)[None] * 7 % 96
TARGETS = {
    "llama3": [],
    "llama": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "qwen2": ["q_proj", "k_proj", "v_proj", "gate_proj"],
    "gpt2": ["c_attn", "c_proj"],
}


def adapted(base: Any, folder: Path, name: str, **more: Any) -> Any:
    """PEFT's model, with every B drawn, and its folder written."""
    torch.manual_seed(1)
    settings = {"r": 3, "lora_alpha": 5, "target_modules": TARGETS[name], "fan_in_fan_out": name == "gpt2"} | more
    model = peft.get_peft_model(base, peft.LoraConfig(**settings)).eval()
    with torch.no_grad():
        for each, parameter in model.named_parameters():
            if "lora_B" in each or "modules_to_save" in each or "magnitude" in each:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    return model


def with_adapters(path: Path, line: str) -> Path:
    text = path.read_text()
    path.write_text(text.replace("  weights:", f"  parameters: {line}\n  weights:"))
    return path


def logits_of(model: Any) -> torch.Tensor:
    found = model.get_submodule("lm")(TOKENS)
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("llama", {"alpha_pattern": {"down_proj": 9}, "rank_pattern": {"o_proj": 2}}),
        ("qwen2", {"use_rslora": True, "modules_to_save": ["lm_head"]}),
        ("gpt2", {}),
        ("llama", {"use_dora": True}),
        pytest.param("gpt2", {"use_dora": True}, marks=pytest.mark.long),
    ],
)
def test_adapters_of_peft_come_in_and_go_out(tmp_path: Path, name: str, more: dict[str, Any]) -> None:
    """The same logits and gradients; untrained, the same tensors to the bit."""
    base, path = made.write(tmp_path, name)
    theirs = adapted(base, tmp_path / "adapter", name, **more)
    kind = "dora" if more.get("use_dora") else "lora"
    plan = dt.load(with_adapters(path, f"{{lm: {{adapter: {{type: {kind}, from: adapter}}}}}}")).plan()
    ours = plan.module()
    wanted, found = theirs(TOKENS).logits, logits_of(ours)
    assert (found - wanted).abs().max() < 1e-6 * max(1.0, wanted.abs().max().item())
    for module in (ours, theirs):
        for each, parameter in module.named_parameters():
            parameter.requires_grad_("lora_" in each)
    for logits in (found, wanted):
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    layer = "lm.layers.1.down" if name == "gpt2" else "lm.layers.1.attn.qkv"
    modules = {
        "llama": ("self_attn.q_proj", "self_attn.v_proj"),
        "qwen2": tuple(f"self_attn.{each}_proj" for each in "qkv"),
        "gpt2": ("mlp.c_proj",),
    }[name]
    top = "transformer.h.1." if name == "gpt2" else "model.layers.1."
    words = ["lora_A.weight", "lora_B.weight", *(["lora_magnitude_vector"] if kind == "dora" else [])]
    for word in words:
        place = f"{word.removesuffix('.weight')}.default.weight"
        grads = [theirs.get_parameter(f"base_model.model.{top}{each}.{place}").grad for each in modules]
        mine = ours.get_parameter(f"{layer}.{word}").grad
        assert (mine - torch.cat(grads)).abs().max() < 1e-6
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    back = export(run.trained(), "peft", tmp_path / "back").folder
    before, after = (load_file(each / "adapter_model.safetensors") for each in (tmp_path / "adapter", back))
    assert set(after) == set(before)
    assert all(torch.equal(after[each], before[each]) for each in after)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2"])
def test_peft_loads_ours_on_the_model_of_transformers(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM

    _, path = made.write(tmp_path, name)
    tied = name == "gpt2"
    head = "" if tied else ", lm.logits: {frozen: false}"
    line = f"{{layers: {{adapter: {{type: lora, rank: 2, alpha: 6}}}}, down: {{adapter: {{type: lora}}}}{head}}}"
    run = dt.load(with_adapters(path, line), set={"training.optimizer.lr": 0.5}).run(quiet=True)
    folder = export(run.trained(), "peft", tmp_path / "out").folder
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tmp_path / "published")
    assert config["task_type"] == "CAUSAL_LM"
    assert config["modules_to_save"] == (None if tied else ["lm_head"])
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "published")
    theirs = peft.PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        found, wanted = logits_of(run.module()), theirs(TOKENS).logits
        bare = AutoModelForCausalLM.from_pretrained(tmp_path / "published")(TOKENS).logits
    assert (found - wanted).abs().max() < 1e-6 * max(1.0, wanted.abs().max().item())
    assert (bare - wanted).abs().max() > 1e-3
    text = path.read_text().replace(line, "{lm: {adapter: {type: lora, from: out}}}")
    path.write_text(text)
    again = dt.load(path).plan().module()
    with torch.no_grad():
        assert (logits_of(again) - wanted).abs().max() < 1e-6 * max(1.0, wanted.abs().max().item())


def linted(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["lint", str(path)]) == 1
    return capsys.readouterr().out


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["llama3", "gpt2"])
def test_all_linear_maps_of_a_tied_model_are_those_of_peft(tmp_path: Path, name: str) -> None:
    """An adapter on the whole node: the head that is the embedding has none, there as here."""
    base, path = made.write(tmp_path, name)
    adapted(base, tmp_path / "theirs", name, target_modules="all-linear")
    run = dt.load(with_adapters(path, "{lm: {adapter: {type: lora, rank: 3}}}"), set={"training.steps": 1}).run(
        quiet=True
    )
    ours = load_file(export(run.trained(), "peft", tmp_path / "out").folder / "adapter_model.safetensors")
    wanted = load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    assert {each: item.shape for each, item in ours.items()} == {each: item.shape for each, item in wanted.items()}


@pytest.mark.timeout(120)
def test_what_cannot_be_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, path = made.write(tmp_path, "llama")
    text = path.read_text()
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5}
    with_adapters(path, "{lm: {adapter: {type: lora, from: adapter}}}")
    assert "there is no adapter_config.json" in linted(path, capsys)
    adapted(base, tmp_path / "adapter", "llama", rank_pattern={"q_proj": 2})
    assert "adapters of more than one rank, and are one map here" in linted(path, capsys)
    base = made.make("llama", tmp_path / "other")
    adapted(base, tmp_path / "adapter", "llama")
    path.write_text(text)
    with_adapters(path, "{attn: {adapter: {type: lora, from: adapter}}}")
    said = linted(path, capsys)
    assert "match no parameter here: base_model.model.model.layers.0.mlp.down_proj.lora_A.weight" in said
    assert "such as `lm`" in said
    path.write_text(text)
    with_adapters(path, "{lm: {adapter: {type: lora, from: adapter, rank: 4}}}")
    assert "`rank` is set, but `from` already defines it" in linted(path, capsys)
    path.write_text(text)
    with_adapters(path, "{lm: {adapter: {type: lora, from: adapter}}}")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "IA3"}))
    assert "adapters of the type `IA3`" in linted(path, capsys)
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    name = next(each for each in tensors if "v_proj.lora_B" in each)
    save_file({**tensors, name: tensors[name][:-1].clone()}, file)
    assert "cannot fill `lm.layers.0.attn.qkv.lora_B.weight`" in linted(path, capsys)


@pytest.mark.timeout(60)
def test_a_shared_embedding_that_was_trained_is_refused(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "gpt2")
    line = "{layers: {adapter: {type: lora, rank: 2}}, lm.embed: {frozen: false}}"
    run = dt.load(with_adapters(path, line)).run(quiet=True)
    with pytest.raises(ExportFailure, match="shared by two modules"):
        export(run.trained(), "peft", tmp_path / "out")
