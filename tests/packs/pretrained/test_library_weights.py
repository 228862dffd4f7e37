"""The files of a model of transformers: what is read of them is what `from_pretrained` reads, by the rows of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch.utils.flop_counter import FlopCounterMode

import declarative_train as dt
from declarative_train.packs.export.export import export
from declarative_train.packs.pretrained.libraries import files as read_files
from declarative_train.packs.pretrained.libraries.modules.node import bare, rows_of
from declarative_train.packs.pretrained.libraries.node_fields import read_config
from declarative_train.packs.pretrained.libraries.transformers import Transformers
from tests.packs.pretrained import library_models as made

pytestmark = pytest.mark.timeout(200)


@pytest.fixture(autouse=True)
def _runs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made.write_data(tmp_path)


def write(node: dict[str, Any], target: str, **more: Any) -> Path:
    """Write a recipe of one step that changes nothing."""
    told = made.recipe(node, target, **more)
    told["training"] |= {"steps": 1, "optimizer": {"type": "sgd", "lr": 0.0}}
    Path("recipe.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
    return Path("recipe.yaml")


def layer_of(name: str, **fields: Any) -> Transformers:
    folder = Path(name).absolute()
    return Transformers(path=str(folder), config=read_config(str(folder)), **fields)


def load(name: str, folder: str | Path) -> Any:
    """Return what transformers loads from a folder; nothing may be left over on either side."""
    import transformers

    kind = getattr(transformers, (made.CONVERTED | made.CONFIGS)[name]["architectures"][0])
    found, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return found


def change(name: str, changes: dict[str, str | None]) -> None:
    """Rename tensors of a folder's file, or take them away."""
    file = Path(name, "model.safetensors")
    kept = {changes.get(key, key): item for key, item in load_file(file).items()}
    save_file({key: item for key, item in kept.items() if key is not None}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", made.CONVERTED)
def test_a_model_comes_in_and_goes_out_as_from_pretrained_has_it(name: str) -> None:
    made.publish(name, Path(name))
    theirs = load(name, name).state_dict()
    run = dt.load(write(*made.begin_at(name))).run(quiet=True)
    ours = run.module().get_submodule("net").state_dict()
    assert ours.keys() == theirs.keys()
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []
    folder = export(run.trained(), "huggingface", Path("back")).folder
    back = load(name, folder).state_dict()
    assert [key for key in theirs if not torch.equal(back[key], theirs[key])] == []
    assert load_file(folder / "model.safetensors").keys() == load_file(Path(name, "model.safetensors")).keys()


@pytest.mark.parametrize("name", ["mixtral", pytest.param("gpt_neox", marks=pytest.mark.long)])
def test_ranks_of_fsdp_read_a_model_that_is_converted(name: str) -> None:
    theirs = made.publish(name, Path(name)).state_dict()
    run = dt.load(write(*made.begin_at(name), parallelism="fsdp", layout={"gpus": 2, "device": "cpu"})).run(quiet=True)
    ours = run.module().get_submodule("net").state_dict()
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []


def test_a_rank_reads_the_experts_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = made.publish("qwen3_moe", Path("qwen3_moe")).state_dict()
    layer, seen = layer_of("qwen3_moe"), set[str]()
    real = read_files.tensor_origin

    def watched(name: str, header: read_files.Header) -> read_files.TensorOrigin:
        seen.add(name)
        return real(name, header)

    layer.files(bare(layer, {}))
    monkeypatch.setattr("declarative_train.packs.pretrained.libraries.modules.conversion.tensor_origin", watched)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    rows = rows_of(layer, {}, 0, name, 1, 2)
    assert torch.equal(rows, theirs[name][1:3])
    begin = "model.layers.1.mlp.experts"
    assert seen == {f"{begin}.{expert}.{part}_proj.weight" for expert in (1, 2) for part in ("gate", "up")}
    assert rows_of(layer, {}, 0, name, 4, 0).shape == (0, *theirs[name].shape[1:])


@pytest.mark.parametrize("name", ["mixtral", "llama"])
def test_operations_are_counted_of_the_experts_that_a_token_meets(name: str, caplog: pytest.LogCaptureFixture) -> None:
    theirs = made.publish(name, Path(name))
    if name == "mixtral":
        theirs.set_experts_implementation("eager")
    with FlopCounterMode(display=False) as counter:
        theirs(torch.zeros(1, made.TOKENS, dtype=torch.int64))
    plan = dt.load(write(*made.begin_at(name))).plan().plan
    assert plan.flops.forward == counter.get_total_flops()
    assert caplog.records == []  # torch reports an operation that fails without values


def said(path: Path) -> list[tuple[bool, str]]:
    return [(each.is_error, each.message) for each in dt.load(path).lint() if each.is_error or "files" in each.message]


def test_names_of_the_files_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    """As a head under another name: what the model would start at random is in the files."""
    made.publish("gpt_neox", Path("gpt_neox"))
    change("gpt_neox", {"embed_out.weight": "head_out.weight"})
    node, target = made.begin_at("gpt_neox")
    wanted = (
        "the files are not those of a `GPTNeoXForCausalLM`: they lack lm_head.weight, and they have head_out.weight, "
        "which the model does not have"
    )
    assert said(write(node, target)) == [(True, wanted)]
    change("gpt_neox", {"head_out.weight": None})  # a body without a head, and nothing else
    found = "lm_head.weight: not in the files of `path`, and start at random"
    assert said(write(node, target)) == [(False, found)]


def test_another_class_has_a_head_of_its_own() -> None:
    """The files are of a language model: its head is not in a classifier, whose own starts at random."""
    made.publish("gpt_neox", Path("gpt_neox"))
    node, _ = made.begin_at("gpt_neox")
    node |= {"architecture": "GPTNeoXForSequenceClassification", "classes": 3, "config": {"pad_token_id": 0}}
    found = (
        "score.weight: not in the files of `path`, and start at random; the files have embed_out.weight, which the "
        "model does not have"
    )
    assert said(write(node, "label")) == [(False, found)]
    change("gpt_neox", {"gpt_neox.layers.1.mlp.dense_4h_to_h.weight": "gpt_neox.layers.1.mlp.down.weight"})
    [(is_error, message)] = said(write(node, "label"))
    assert is_error
    assert "they lack gpt_neox.layers.1.mlp.dense_4h_to_h.weight, score.weight" in message


def test_an_expert_that_is_not_in_the_files_is_an_error() -> None:
    made.publish("mixtral", Path("mixtral"))
    names = [name for name in load_file(Path("mixtral", "model.safetensors")) if "layers.1" in name and ".w1." in name]
    change("mixtral", {names[-1]: None})
    [(is_error, message)] = said(write(*made.begin_at("mixtral")))
    assert is_error
    assert message.startswith("transformers cannot make `model.layers.1.mlp.experts.gate_up_proj` from the files: ")


def test_a_config_has_infinity_as_transformers_writes_it() -> None:
    """JSON has no word for it."""
    import transformers

    sizes = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "head_dim": 8}
    config = transformers.FalconH1Config(**made.LLAMA | sizes | {"model_type": "falcon_h1"})
    config.save_pretrained("falcon_h1")
    assert "__float__" in Path("falcon_h1", "config.json").read_text()
    assert layer_of("falcon_h1").make_config().time_step_limit == (0.0, float("inf"))


def test_a_tied_head_with_values_of_its_own_is_an_error() -> None:
    """transformers unties it, with a warning; here the config has to say so."""
    made.publish("qwen3", Path("qwen3"))
    file = Path("qwen3", "model.safetensors")
    tensors = load_file(file)
    same = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}
    save_file(same, file, metadata={"format": "pt"})
    node, target = made.begin_at("qwen3")
    assert said(write(node, target)) == []
    save_file(same | {"lm_head.weight": same["lm_head.weight"] + 1}, file, metadata={"format": "pt"})
    names = "`model.embed_tokens.weight` and `lm_head.weight`"
    assert said(write(node, target)) == [(True, f"{names} are one parameter in the model, and differ in the files")]
    run = dt.load(write(node | {"config": {"tie_word_embeddings": False}}, target)).plan()
    head = run.module().get_parameter("net.lm_head.weight")
    assert torch.equal(head, same["lm_head.weight"] + 1)


def test_a_head_under_another_name_is_an_error_of_timm() -> None:
    import timm

    tensors = timm.create_model("test_vit", num_classes=3, img_size=32).state_dict()
    node = {"type": "timm", "name": "test_vit", "classes": 3, "options": {"img_size": 32}, "input": "picture"}
    node["pretrained"] = "test_vit.safetensors"
    save_file({name.replace("head.", "fc."): item for name, item in tensors.items()}, node["pretrained"])
    wanted = (
        "the files are not those of a `test_vit`: they lack head.weight, head.bias, and they have fc.bias, fc.weight, "
        "which the model does not have"
    )
    assert said(write(node, "label")) == [(True, wanted)]
