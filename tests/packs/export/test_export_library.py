"""Nodes that are models of transformers and timm, given back as these write them: they and dtrain read the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import declarative_train as dt
from declarative_train.inference.trained import UsageError
from declarative_train.packs.export.export import export
from tests.packs.pretrained import library_models as made

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _runs_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def recipe(folder: Path, node: dict[str, Any], target: str, **training: Any) -> Path:
    told = made.recipe(node, target)
    told["training"] |= {"steps": 1, **training}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
    return folder / "recipe.yaml"


@pytest.mark.parametrize("name", ["bert", "qwen3"])
def test_an_untouched_model_of_transformers_is_given_back_to_the_bit(tmp_path: Path, name: str) -> None:
    import transformers

    made.write_data(tmp_path)
    theirs = made.publish(name, tmp_path / "begun")
    (tmp_path / "begun" / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    node, target = made.node_of(name)
    node = {key: value for key, value in node.items() if key != "config"} | {"path": "begun"}
    still = {"optimizer": {"type": "sgd", "lr": 0.0}}
    trained = dt.load(recipe(tmp_path, node, target, **still)).run(quiet=True).trained()
    folder = export(trained, "huggingface", tmp_path / "back").folder
    kind = getattr(transformers, made.CONFIGS[name]["architectures"][0])
    back, report = kind.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert back.state_dict().keys() == theirs.state_dict().keys()
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in back.state_dict().items())
    assert back.config.use_cache == theirs.config.use_cache is True  # it is off in training alone
    assert (folder / "vocab.txt").exists()
    assert f"{kind.__name__}.from_pretrained" in (folder / "README.md").read_text()
    half = export(trained, "huggingface", tmp_path / "half", dtype="bfloat16").folder
    assert kind.from_pretrained(half).dtype == torch.bfloat16
    with pytest.raises(UsageError, match="--to huggingface writes `net`"):
        export(trained, "timm", tmp_path / "none")
    again = dt.load(recipe(tmp_path, node | {"path": "back"}, target)).plan().module().get_submodule("net")
    assert all(torch.equal(value, theirs.get_parameter(key)) for key, value in again.named_parameters())


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_a_trained_model_of_timm_is_loaded_by_it_and_by_us(tmp_path: Path, name: str) -> None:
    """Of one channel; its running statistics have moved. The names of the classes go with it."""
    import timm

    made.write_data(tmp_path)
    node, _ = made.node_of(name)
    told = made.recipe(node, "label")
    told["model"]["graph"] = {"grey": "picture[:, :1]", "net": node | {"input": "grey"}}
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(told, sort_keys=False))
    run = dt.load(path).run(quiet=True)
    folder = export(run.trained(), "timm", tmp_path / "back").folder
    back = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    ours = run.module().eval().get_submodule("net")
    pictures = torch.randn(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(back(pictures), ours(pictures))
    assert back.pretrained_cfg["input_size"] == (1, 32, 32)
    told["model"]["graph"]["net"] = {"type": "timm", "path": "back", "pretrained": True, "input": "grey"}
    path.write_text(yaml.safe_dump(told, sort_keys=False))
    again = dt.load(path).plan().module().eval().get_submodule("net")
    assert torch.equal(again(pictures), ours(pictures))


@pytest.mark.parametrize("library", ["transformers", "timm"])
def test_the_names_of_the_classes_go_with_it(tmp_path: Path, library: str) -> None:
    lines = ["x0,x1,kind", *(f"{i % 7},{i % 5},{('cat', 'dog')[i % 2]}" for i in range(40))]
    (tmp_path / "rows.csv").write_text("\n".join([*lines, ""]))
    wide = {"type": "unflatten", "dim": 1, "sizes": [1, 1, 2], "input": "x"}
    tokens = {"net": {"type": "transformers", "config": made.CONFIGS["bert"], "classes": 2, "input": "ids"}}
    graph: dict[str, Any] = {"ids": "int(x)", **tokens}
    if library == "timm":
        zoom = {"type": "upsample", "size": [32, 32], "input": "wide"}
        graph = {"wide": wide, "large": zoom, "net": {"type": "timm", "name": "test_vit", "classes": 2}}
        graph["net"]["options"] = {"img_size": 32}
    told = made.recipe(tokens["net"], "label") | {"model": {"graph": graph}}
    told["data"] = {
        "source": {"type": "csv", "path": "rows.csv"},
        "fields": {"x": {"columns": "x*"}, "label": {"type": "category", "column": "kind"}},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
    trained = dt.load(tmp_path / "recipe.yaml").run(quiet=True).trained()
    to = "timm" if library == "timm" else "huggingface"
    config = json.loads((export(trained, to, tmp_path / "back").folder / "config.json").read_text())
    names = config["label_names"] if library == "timm" else list(config["id2label"].values())
    assert names == ["cat", "dog"]


def test_a_published_model_is_a_base_that_has_learnt(tmp_path: Path) -> None:
    made.write_data(tmp_path)
    made.publish("bert", tmp_path / "begun")
    drawn, target = made.node_of("bert")
    begun = {key: value for key, value in drawn.items() if key != "config"} | {"path": "begun"}
    for node, codes in ((begun, []), (drawn, ["U124"])):
        told = made.recipe(node, target)
        told["model"]["parameters"] = {"{query,value}": {"adapter": {"type": "lora", "rank": 4}}}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(told, sort_keys=False))
        assert [each.code for each in dt.load(tmp_path / "recipe.yaml").lint()] == codes
