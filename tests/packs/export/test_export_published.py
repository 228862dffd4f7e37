"""Published models given back: transformers and dtrain read what was tuned, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import declarative_train as dt
from declarative_train.__main__ import main
from declarative_train.inference.trained import UsageError
from declarative_train.packs.export import published
from declarative_train.packs.export.export import export
from tests.packs.pretrained import published_models as made

VARIANTS = {"deepseek_plain", "gpt2_untied", "llama_biases", "mistral", "qwen2_yarn", "qwen3", "qwen3_moe_normalised"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in VARIANTS else name for name in sorted(made.CONFIGS)]
)
def test_an_untouched_model_is_given_back_to_the_bit(tmp_path: Path, name: str) -> None:
    """One step with a learning rate of 0: every tensor and every key of the config."""
    from transformers import AutoModelForCausalLM

    theirs, path = made.write(tmp_path, name, node=", bias_rate: 0.0" if name.startswith("deepseek") else "")
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    before = json.loads((tmp_path / "published" / "config.json").read_text())
    assert json.loads((folder / "config.json").read_text()) == before
    back, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted = theirs.state_dict()
    assert {key: value.shape for key, value in back.state_dict().items()} == {k: v.shape for k, v in wanted.items()}
    assert all(torch.equal(value, wanted[key]) for key, value in back.state_dict().items())


def test_what_was_trained_goes_out_in_shards_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tokenizer next to it; read by transformers and by a recipe, and written anew into the same folder."""
    from transformers import AutoModelForCausalLM

    _, path = made.write(tmp_path, "qwen3")
    (tmp_path / "published" / "tokenizer.json").write_text("{}")
    run = dt.load(path).run(quiet=True)
    monkeypatch.setattr(published, "SHARD_BYTES", 20_000)
    assert main(["export", str(run.folder), "--to", "huggingface", "-o", str(tmp_path / "out")]) == 0
    assert main(["export", str(run.folder), "--to", "huggingface", "-o", str(tmp_path / "out")]) == 0
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert {"config.json", "tokenizer.json", "README.md", "plan.json", "model.safetensors.index.json"} <= names
    assert "from: " in (tmp_path / "out" / "README.md").read_text()
    module = run.module()
    tokens = torch.arange(12)[None]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()(tokens).logits
    ours = module.get_submodule("lm")(tokens)
    torch.testing.assert_close(ours[0] if isinstance(ours, tuple) else ours, theirs, rtol=1e-5, atol=1e-5)
    path.write_text(path.read_text().replace(str(tmp_path / "published"), str(tmp_path / "out")))
    again = dt.load(path).plan().module()
    for name, value in module.named_parameters():
        assert torch.equal(again.get_parameter(name), value), name


def test_the_bias_of_experts_is_loaded_moved_and_given_back_in_float32(tmp_path: Path) -> None:
    """One step, with a learning rate of 0 and in a half precision export."""
    from safetensors.torch import load_file

    _, path = made.write(tmp_path, "deepseek")
    before = load_file(tmp_path / "published" / "model.safetensors")
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back", dtype="bfloat16").folder
    after = load_file(folder / "model.safetensors")
    for layer in (1, 2):
        name = f"model.layers.{layer}.mlp.gate.e_score_correction_bias"
        moved = after[name] - before[name]
        assert moved.any()
        torch.testing.assert_close(moved.abs(), moved.sign().abs() * 1e-3, rtol=0, atol=1e-7)
    assert after["model.norm.weight"].dtype == torch.bfloat16


def test_a_block_that_was_trained_from_nothing_gets_a_config(tmp_path: Path) -> None:
    """Of the first model that is so: biases of queries alone are Qwen 2's."""
    from transformers import AutoModelForCausalLM

    _, path = made.write(tmp_path, "llama")
    sizes = "vocabulary: 96, layers: 2, width: 32, heads: 4, hidden: 40, qkv_bias: true"
    text = path.read_text().replace(f"from: {tmp_path / 'published'}", sizes)
    path.write_text("\n".join(line for line in text.splitlines() if "huggingface" not in line))
    run = dt.load(path).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "out", dtype="bfloat16").folder
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["dtype"]) == ("qwen2", "bfloat16")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.arange(12)[None]
    ours = run.module().bfloat16().float().get_submodule("lm")(tokens)
    torch.testing.assert_close(
        ours[0] if isinstance(ours, tuple) else ours, theirs(tokens).logits, rtol=1e-5, atol=1e-5
    )


YARN = {"type": "yarn", "factor": 4.0, "original_length": 64}


@pytest.mark.parametrize(
    ("name", "scaling", "length"),
    [
        ("llama", YARN, 256),
        ("llama", {"type": "linear", "factor": 2.0}, 128),
        ("qwen2_yarn", YARN | {"original_length": 16, "factor": 8.0}, 128),
        ("llama3", YARN | {"original_length": 8}, 32),
    ],
)
def test_a_model_with_other_rotary_positions_has_their_length(
    tmp_path: Path, name: str, scaling: dict[str, object], length: int
) -> None:
    """Older releases of transformers take the factor of YaRN from it. Logits are ours beyond the old length too."""
    from transformers import AutoModelForCausalLM

    _, path = made.write(tmp_path, name, node=f", rotary_scaling: {json.dumps(scaling)}")
    run = dt.load(path, set={"training.steps": 1}).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == length
    tokens = (torch.arange(80) * 7 % 96)[None]
    ours = run.module().get_submodule("lm")(tokens)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    torch.testing.assert_close(ours[0] if isinstance(ours, tuple) else ours, theirs, rtol=1e-5, atol=1e-5)


def test_adapters_are_merged(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    _, path = made.write(tmp_path, "llama")
    text = path.read_text().replace(
        "  weights:", '  parameters: {"attn": {adapter: {type: lora, rank: 2}}}\n  weights:'
    )
    path.write_text(text)
    run = dt.load(path).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "out").folder
    tokens = torch.arange(12)[None]
    ours = run.module().get_submodule("lm")(tokens)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens).logits
    torch.testing.assert_close(ours[0] if isinstance(ours, tuple) else ours, theirs, rtol=1e-5, atol=1e-5)
    old = AutoModelForCausalLM.from_pretrained(tmp_path / "published").eval()(tokens).logits
    assert not torch.allclose(old, theirs, rtol=1e-5, atol=1e-5)


def test_what_no_published_model_is_cannot_be_exported(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "llama")
    text = path.read_text().replace(
        f"type: llama, from: {tmp_path / 'published'}", "type: embedding, embedding_dim: 96"
    )
    text = text.replace("embedding_dim: 96", "embedding_dim: 96, num_embeddings: 96")
    path.write_text("\n".join(line for line in text.splitlines() if "huggingface" not in line))
    run = dt.load(path).run(quiet=True)
    with pytest.raises(UsageError, match="no node of this run"):
        export(run.trained(), "huggingface", tmp_path / "out")
