"""Published models taken in: the logits and gradients of transformers, whatever the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import declarative_train as dt
from declarative_train.components.layers.modules.shapes import EmbeddingNoiseModule
from declarative_train.engine.step.tensor_files import Tensors, join_rows
from declarative_train.packs.export.export import export
from declarative_train.packs.pretrained.published import PartPlan, config_of, family_of, params_of
from tests.packs.pretrained import published_models as made


def ids(rows: int = 3) -> torch.Tensor:
    return torch.randint(0, 90, (rows, made.TOKENS), generator=torch.Generator().manual_seed(1))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", sorted(made.CONFIGS))
def test_logits_and_gradients_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    theirs, path = made.write(tmp_path, name)
    plan = dt.load(path).plan()
    ours = plan.module().eval().get_submodule("lm")
    tokens = ids()
    wanted = theirs(tokens).logits
    found = ours(tokens)
    found = found[0] if isinstance(found, tuple) else found
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2))
    (wanted * weight).sum().backward()
    (found * weight).sum().backward()
    graded = made.theirs_as_ours(theirs, plan.plan, grad=True)
    held = dict(ours.named_parameters())
    assert {f"lm.{each}" for each in held} == set(graded)
    for parameter, gradient in graded.items():
        mine = held[parameter.removeprefix("lm.")].grad
        scale = gradient.abs().max().item()
        torch.testing.assert_close(mine / scale, gradient / scale, rtol=1e-5, atol=1e-5, msg=parameter)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        *("gemma", "gpt2"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("deepseek", "gemma3", "gpt_oss", "llama", "mixtral")),
    ],
)
def test_noise_on_embeddings_is_that_of_transformers(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the same place and of the same size, with the same draws; none in an evaluation."""
    from transformers.integrations.neftune import neftune_post_forward_hook

    theirs, path = made.write(tmp_path, name, node=", noise: 30")
    ours = dt.load(path).plan().module().get_submodule("lm").eval()
    quiet = ours(ids())
    embedding = theirs.get_input_embeddings().train()
    embedding.neftune_noise_alpha = 30
    embedding.register_forward_hook(neftune_post_forward_hook)
    drawn = torch.rand(3, made.TOKENS, 32)
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda tensor, low, high: tensor.copy_(low + (high - low) * drawn))
    monkeypatch.setattr(torch, "rand_like", lambda _: drawn)
    (noise,) = (part for part in ours.modules() if isinstance(part, EmbeddingNoiseModule))
    noise.train()
    wanted, found = theirs(ids()).logits, ours(ids())
    found, quiet = (each[0] if isinstance(each, tuple) else each for each in (found, quiet))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert (found - quiet).abs().max() > 0.01


def said(path: Path, **changes: Any) -> tuple[str, str]:
    found = [each for each in dt.load(path).lint() if each.is_error]
    assert len(found) == 1, found
    return found[0].message, found[0].help or ""


def rewrite(folder: Path, change: Any) -> None:
    """The tensors of the folder, changed."""
    from safetensors.torch import load_file, save_file

    path = folder / "published" / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("model.layers.1.mlp.up_proj.weight"), "missing in the files: model.layers.1.mlp.up_proj"),
        (lambda t: t.update({"score.weight": torch.zeros(2, 32)}), "unexpected in the files: score.weight"),
        (
            lambda t: t.update({"model.layers.0.self_attn.k_proj.weight": torch.zeros(8, 32)}),
            "`layers.0.attn.qkv.weight` (64, 32)",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(32, dtype=torch.int8)}),
            "1 tensor of it not in floating point of 16 bits or more: model.norm.weight (I8)",
        ),
    ],
)  # fmt: skip
def test_names_shapes_and_dtypes_are_checked_by_headers(tmp_path: Path, change: Any, words: str) -> None:
    _, path = made.write(tmp_path, "llama3")
    rewrite(tmp_path, change)
    assert words in said(path)[0]


def test_shares_of_a_fused_parameter_are_checked(tmp_path: Path) -> None:
    """As many rows in all, and other ones: q of 4 heads and k, v of 2 are not q of 2 and k, v of 3."""
    _, path = made.write(tmp_path, "llama3")

    def moved(tensors: dict[str, torch.Tensor]) -> None:
        for layer in range(3):
            name = f"model.layers.{layer}.self_attn."
            tensors[f"{name}q_proj.weight"] = torch.zeros(16, 32)
            tensors[f"{name}k_proj.weight"] = tensors[f"{name}v_proj.weight"] = torch.zeros(24, 32)

    def apart(tensors: dict[str, torch.Tensor]) -> None:
        moved(tensors)
        for name in list(tensors):
            tensors[name] = tensors[name].clone()

    rewrite(tmp_path, apart)
    assert "cannot fill `layers.0.attn.qkv.weight` (64, 32)" in said(path)[0]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"model_type": "mamba"}, "model of type `mamba`, which `llama` is not"),
        ({"hidden_act": "relu6"}, "its `hidden_act` is `relu6`"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "of the type `dynamic`"),
        ({"quantization_config": {"quant_method": "fp8"}}, "its weights are quantized in another format than mxfp4"),
        ({"hidden_size": None}, "has no `hidden_size`"),
        ({"rope_parameters": 3}, "is not valid"),
    ],
)
def test_a_config_that_the_block_is_not_is_refused(tmp_path: Path, told: dict[str, Any], words: str) -> None:
    _, path = made.write(tmp_path, "llama")
    place = tmp_path / "published" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | told))
    assert words in said(path)[0]


@pytest.mark.parametrize(
    ("told", "help"),
    [
        ({"model_type": "gpt_neox"}, "`llama` is llama, mistral, qwen2, qwen3; `{type: transformers, path: FOLDER}`"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "`{type: transformers, "),
        ({"model_type": "vit"}, "`type: vit`"),
        ({"model_type": "own", "auto_map": {"AutoModel": "own.Model"}}, "`llama` is llama, mistral, qwen2, qwen3"),
        ({"model_type": "mistral", "architecture": "vit_tiny", "hidden_act": "relu6"}, "`{type: transformers, "),
    ],
)
def test_the_node_that_takes_a_model_is_named(tmp_path: Path, told: dict[str, Any], help: str) -> None:
    _, path = made.write(tmp_path, "llama")
    place = tmp_path / "published" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | told))
    found = said(path)[1]
    assert found.startswith(help)
    assert ("transformers" in found) == ("transformers" in help)


@pytest.mark.parametrize(
    ("name", "told", "words"),
    [
        ("gemma2", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "its `layer_types` are"),
        ("gemma2", {"use_bidirectional_attention": True}, "its `use_bidirectional_attention` is true"),
        ("gemma2", {"rope_parameters": made.GEMMA3_ROTARY["full_attention"]}, "scaled in layers with a window too"),
        ("gemma3", {"rope_parameters": {"sliding_attention": made.LLAMA3}}, "layers with a window are scaled"),
        ("gemma3", {"hidden_activation": "relu6"}, "its `hidden_activation` is `relu6`"),
    ],
)
def test_a_gemma_that_the_block_is_not_is_refused(tmp_path: Path, name: str, told: dict[str, Any], words: str) -> None:
    _, path = made.write(tmp_path, name)
    place = tmp_path / "published" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | told))
    assert words in said(path)[0]


def params(path: Path) -> dict[str, Any]:
    (published,) = dt.load(path).plan().plan.published
    return published.params


def test_a_null_in_a_config_is_no_key_that_is_absent(tmp_path: Path) -> None:
    """A Mistral of today says so that it has no window, a Gemma 2 that it caps nothing."""
    for name, keys, at in (
        ("mistral", {"sliding_window": ("window", 4096)}, "a"),
        ("gemma2", {"attn_logit_softcapping": ("attn_cap", 50.0), "final_logit_softcapping": ("logit_cap", 30.0)}, "b"),
    ):
        (tmp_path / at).mkdir()
        _, path = made.write(tmp_path / at, name)
        place = tmp_path / at / "published" / "config.json"
        config = json.loads(place.read_text())
        place.write_text(json.dumps(config | dict.fromkeys(keys)))
        assert {param: params(path)[param] for param, _ in keys.values()} == {param: None for param, _ in keys.values()}
        place.write_text(json.dumps({key: value for key, value in config.items() if key not in keys}))
        assert {param: params(path)[param] for param, _ in keys.values()} == dict(keys.values())


def test_configs_of_gemma_as_they_were_before(tmp_path: Path) -> None:
    """The first Gemma says gelu and means its formula; Gemma 3 has a key for each base, and one for its period."""
    for name, gone, told in (
        ("gemma", {"rope_parameters"}, {"hidden_act": "gelu", "rope_theta": 10000.0}),
        (
            "gemma3",
            {"rope_parameters", "layer_types"},
            {"rope_theta": 1e5, "rope_local_base_freq": 1e4, "sliding_window_pattern": 2}
            | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        ),
    ):
        (tmp_path / name).mkdir()
        _, path = made.write(tmp_path / name, name)
        today = params(path)
        place = tmp_path / name / "published" / "config.json"
        config = {key: value for key, value in json.loads(place.read_text()).items() if key not in gone}
        place.write_text(json.dumps(config | told))
        assert params(path) == today


OURS: dict[str, Any] = {
    "vocabulary": 96,
    "layers": 4,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "hidden": 64,
    "eps": 1e-6,
}
OURS |= {"head_width": 8, "attn_scalar": 8.0, "rotary_base": 1e4, "local_rotary_base": 1e4, "activation": "gelu_tanh"}
OURS |= dict.fromkeys(("attn_cap", "logit_cap", "rotary_scaling", "window", "padding"))
OURS |= {"global_every": 1, "tie": True} | dict.fromkeys(("post_norms", "qk_norm", "qkv_bias", "out_bias"), False)
OWN_WINDOWS = {"post_norms": True, "qk_norm": True, "window": 7, "global_every": 3, "local_rotary_base": 1e3}


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({}, "gemma"),
        ({"post_norms": True, "attn_cap": 5.0, "window": 3, "global_every": 2}, "gemma2"),
        ({"post_norms": True}, "gemma2"),
        (OWN_WINDOWS | {"rotary_scaling": {"type": "linear", "factor": 2.0}}, "gemma3_text"),
    ],
)
def test_a_gemma_of_ones_own_has_a_config_that_transformers_runs(more: dict[str, Any], kind: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    family = family_of("gemma")
    assert family is not None
    params = OURS | more
    config = config_of(family, params)
    assert params_of(family, config) == {key: value for key, value in params.items() if value is not None} | {
        key: None for key in ("attn_cap", "logit_cap", "rotary_scaling", "window") if params[key] is None
    }
    assert config.pop("model_type") == kind
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    assert model(ids()).logits.shape == (3, made.TOKENS, 96)


def test_what_the_node_says_goes_before_the_config(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "llama", node=", layers: 2")
    message, hint = said(path)
    assert "unexpected in the files: model.layers.2." in message
    assert "from:" in hint


def test_a_model_that_is_not_here_is_told_and_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants as hub

    _, path = made.write(tmp_path, "llama")
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    text = path.read_text()
    path.write_text(text.replace(f"from: {tmp_path / 'published'}", "from: nobody/no-such-model"))
    message, hint = said(path)
    assert "neither a folder nor in the cache" in message
    assert "hf download nobody/no-such-model" in hint
    snapshot = tmp_path / "cache" / "models--nobody--no-such-model" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    (tmp_path / "published").rename(snapshot)
    refs = snapshot.parent.parent / "refs"
    refs.mkdir()
    (refs / "main").write_text("0" * 40)
    path.write_text(text.replace(str(tmp_path / "published"), "nobody/no-such-model"))
    assert not [each for each in dt.load(path).lint() if each.is_error]


def test_shards_with_an_index_are_read(tmp_path: Path) -> None:
    theirs, path = made.write(tmp_path, "qwen2", max_shard_size="20KB")
    assert (tmp_path / "published" / "model.safetensors.index.json").exists()
    plan = dt.load(path).plan()
    module = plan.module()
    for name, value in made.theirs_as_ours(theirs, plan.plan, grad=False).items():
        assert torch.equal(module.get_parameter(name), value), name


def test_half_precision_in_the_file_fills_float32(tmp_path: Path) -> None:
    _, path = made.write(tmp_path, "llama")
    rewrite(tmp_path, lambda tensors: tensors.update({name: item.bfloat16() for name, item in tensors.items()}))
    module = dt.load(path).plan().module()
    assert {item.dtype for item in module.parameters()} == {torch.float32}


def test_weights_of_four_bits_are_read_as_transformers_unpacks_them(tmp_path: Path) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    _, path = made.write(tmp_path, "gpt_oss_wide")
    stored: dict[str, torch.Tensor] = {}
    generator = torch.Generator().manual_seed(0)

    def pack(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
            count, columns, rows = tensors.pop(name).shape
            blocks = torch.randint(0, 256, (count, rows, columns // 32, 16), generator=generator, dtype=torch.uint8)
            scales = torch.randint(118, 126, (count, rows, columns // 32), generator=generator, dtype=torch.uint8)
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            stored[name] = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)

    rewrite(tmp_path, pack)
    place = tmp_path / "published" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}))
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    experts = run.module().get_submodule("lm.layers.0.moe.experts")
    wanted = stored["model.layers.0.mlp.experts.gate_up_proj"]
    assert torch.equal(experts.gate, wanted[..., ::2].mT.flatten(0, 1))
    assert torch.equal(experts.up, wanted[..., 1::2].mT.flatten(0, 1))
    assert torch.equal(experts.down, stored["model.layers.0.mlp.experts.down_proj"].mT.flatten(0, 1))
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())


def test_a_model_without_its_head_names_what_is_missing(tmp_path: Path) -> None:
    """Names without the prefix `model.` are those of the base model; a tied head needs nothing more."""
    theirs, path = made.write(tmp_path, "llama3")
    theirs.model.save_pretrained(tmp_path / "published")
    assert dt.load(path).plan() is not None
    theirs, path = made.write(tmp_path, "llama")
    theirs.model.save_pretrained(tmp_path / "published")
    assert "missing in the files: lm_head.weight" in said(path)[0]


def test_a_rank_reads_its_rows_of_each_part_alone() -> None:
    """Of a parameter that is joined of several tensors, one of which stands transposed."""
    stored = {"a": torch.randn(6, 4), "b": torch.randn(4, 3), "c": torch.randn(3, 4)}
    asked: list[tuple[str, int, int]] = []

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        tensor = stored[name].movedim(dim, 0)
        first, last = (0, len(tensor)) if first is None or last is None else (first, last)
        asked.append((name, first, last))
        return tensor[first:last].movedim(0, dim)

    source = Tensors({name: tuple(item.shape) for name, item in stored.items()}, read)
    parts = (PartPlan("a", 2), PartPlan("b", 1, transpose=True), PartPlan("c", 1))
    whole = torch.cat([stored["a"], stored["b"].T, stored["c"]])
    assert torch.equal(join_rows(source, parts, None, None), whole)
    for first in range(13):
        for last in range(first, 13):
            asked.clear()
            assert torch.equal(join_rows(source, parts, first, last), whole[first:last])
            assert sum(end - begin for _, begin, end in asked) == last - first
