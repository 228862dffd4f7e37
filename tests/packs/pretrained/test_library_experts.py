"""Models of transformers whose experts the ranks of `expert` divide, by the library's plan for the class."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

import declarative_train as dt
from declarative_train.components.layers.modules.expert_ranks import ExpertRanks
from declarative_train.components.matrix_products import Use, Weight
from declarative_train.core.cuts import NodeCut, ParameterCut
from declarative_train.engine.axes.expert import divide_experts
from declarative_train.engine.step.model_preparation import fill, whole_model
from declarative_train.graph.read import read_layer
from declarative_train.packs.export.export import export
from declarative_train.packs.pretrained.libraries.modules.divided import divide_experts as divide_parts
from declarative_train.tools.verify.plan_checks import check_plan
from tests.engine.made_recipes import compiled, merged
from tests.engine.parity import largest_difference, record
from tests.engine.runs import check_resume
from tests.engine.watched import watch
from tests.packs.pretrained import library_models as made
from tests.packs.pretrained.test_library_tensor import DECODER, recipe_of
from tests.thread_ranks import Meeting, ThreadPeers, use_float64

TWO = {"parallelism": {"expert": 2}, "layout": {"gpus": 2}}
WAYS: dict[str, dict[str, Any]] = {
    "expert": TWO,
    "expert x ddp": {"parallelism": {"expert": 2, "data": {"replicate": 2}}, "layout": {"gpus": 4}},
    "expert x shard": {"parallelism": {"expert": 2, "data": {"shard": 2}}, "layout": {"gpus": 4}},
    "expert x tensor": {"parallelism": {"expert": 2, "tensor": 2}, "layout": {"gpus": 4}},
}
NAMES = ("mixtral", "qwen3_moe", "deepseek_v3")
EXPERTS = "net.model.layers.0.mlp.experts"


def config_of(name: str, **more: Any) -> dict[str, Any]:
    """Return a config with the library's implementation that has float64."""
    return made.CONVERTED[name] | {"model_type": name, "experts_implementation": "eager"} | more


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experts")
    made.write_data(path)
    return path


CELLS = [
    pytest.param(name, way, marks=() if way == "expert" and name != "deepseek_v3" else pytest.mark.long)
    for name in NAMES
    for way in WAYS
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("name", "way"), CELLS)
def test_gradients_are_those_of_one_process(folder: Path, name: str, way: str) -> None:
    """Compare three clipped steps of AdamW."""
    recipe = recipe_of(config_of(name))
    with use_float64():
        wanted, found = record(folder, recipe), record(folder, merged(recipe, WAYS[way]))
    assert largest_difference(wanted, found) <= 1e-10
    assert found.losses == pytest.approx(wanted.losses, rel=1e-12)


@pytest.mark.timeout(200)
def test_the_plan_divides_the_experts(folder: Path) -> None:
    plan = compiled(folder, merged(recipe_of(config_of("qwen3_moe")), TWO))
    cuts = plan.layout.cuts
    assert cuts is not None
    assert cuts.nodes == {"net": NodeCut("inside")}
    assert cuts.parts["net"]["model.layers.1.mlp.experts"] == NodeCut("experts", sent=64)  # 2 experts, width 32
    assert cuts.of_experts == cuts.parameters.keys()
    assert {name: cut for name, cut in cuts.parameters.items() if ".0." in name} == {
        f"{EXPERTS}.gate_up_proj": ParameterCut(0, (4,)),
        f"{EXPERTS}.down_proj": ParameterCut(0, (4,)),
    }
    assert not check_plan(plan).problems


@pytest.mark.timeout(200)
def test_tensor_and_expert_divide_different_parts(folder: Path) -> None:
    plan = compiled(folder, merged(recipe_of(config_of("qwen3_moe")), WAYS["expert x tensor"]))
    cuts = plan.layout.cuts
    assert cuts is not None
    kinds = {name: part.kind for name, part in cuts.parts["net"].items() if ".0." in name and part.kind}
    assert kinds["model.layers.0.mlp.experts"] == "experts"
    assert kinds["model.layers.0.self_attn.q_proj"] == "columns"
    assert f"{EXPERTS}.down_proj" in cuts.of_experts
    assert "net.model.layers.0.self_attn.q_proj.weight" in cuts.parameters.keys() - cuts.of_experts
    assert not check_plan(plan).problems
    wrong = replace(cuts, parameters={**cuts.parameters, f"{EXPERTS}.down_proj": ParameterCut(1, (32,))})
    assert check_plan(replace(plan, layout=replace(plan.layout, cuts=wrong))).problems


REFUSED = [
    pytest.param(made.CONFIGS["llama"], 2, "P112", "the library has no plan for experts of `net`", id="no experts"),
    pytest.param(config_of("mixtral"), 3, "P111", "its 4 experts cannot be divided evenly over 3 ranks", id="number"),
]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(("config", "size", "code", "text"), REFUSED)
def test_what_cannot_be_divided_is_an_error(
    folder: Path, config: dict[str, Any], size: int, code: str, text: str
) -> None:
    path = folder / "refused.yaml"
    way = {"parallelism": {"expert": size}, "layout": {"gpus": size}, "training": {"global_batch_size": 12}}
    recipe = merged(made.recipe(DECODER | {"config": config}, "next"), way)
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    (found,) = (each for each in dt.load(path).lint() if each.is_error)
    assert found.code == code
    assert text in found.message


def test_experts_without_rows_have_gradients_of_zero() -> None:
    """Keep the parameters in the backward of a rank whose experts no position chose, since other ranks wait for it."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralExperts

    experts: Any = MixtralExperts(MixtralConfig(**made.SIZES, num_local_experts=2, experts_implementation="eager"))
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_()
    model = torch.nn.ModuleDict({"experts": experts})
    divide_parts(model, ["experts"], ExpertRanks(ThreadPeers(Meeting(1), 0, 1)))
    rows = torch.empty(0, 32, requires_grad=True)
    y = model["experts"](rows, torch.empty(0, 2, dtype=torch.int64), torch.empty(0, 2))
    assert y.shape == (0, 32)
    y.sum().backward()
    assert all(item.grad is not None and not item.grad.any() for item in model.parameters())


@pytest.mark.timeout(200)
def test_a_rank_reads_only_its_experts_of_published_files(folder: Path) -> None:
    """Publish one tensor for each expert, as transformers does, which the library's model joins."""
    theirs = made.publish("mixtral", folder / "mixtral").state_dict()
    plan = compiled(folder, merged(made.recipe(DECODER | {"path": "mixtral"}, "next"), TWO))
    assert plan.layout.cuts is not None
    place: Any = SimpleNamespace(expert=ThreadPeers(Meeting(2), 1, 2))
    held = whole_model(plan)
    divide_experts(held, plan.layout.cuts, place)
    fill(held, plan, torch.device("cpu"), alone=True)
    own = dict(held.model.named_parameters())
    for name in ("gate_up_proj", "down_proj"):
        assert torch.equal(own[f"{EXPERTS}.{name}"], theirs[f"model.layers.0.mlp.experts.{name}"][2:])


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("before", "after"), [("expert", "single"), ("single", "expert x shard"), ("expert x shard", "expert")]
)
def test_a_checkpoint_goes_on_in_another_layout(tmp_path: Path, before: str, after: str) -> None:
    made.write_data(tmp_path)
    recipe = merged(recipe_of(config_of("qwen3_moe")), {"name": "made", "training": {"steps": 6}})
    ways = WAYS | {"single": {}}
    check_resume(tmp_path, recipe, ways[before], ways[after])


@pytest.mark.timeout(300)
def test_the_export_has_the_values_of_the_run(folder: Path) -> None:
    """Compare all tensors to the bit; transformers reads them."""
    import transformers

    base = made.publish("qwen3_moe", folder / "qwen3_moe").state_dict()
    path = folder / "recipe.yaml"
    recipe = merged(made.recipe(DECODER | {"path": "qwen3_moe"}, "next"), TWO)
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    run = dt.load(path).run(quiet=True)
    back = transformers.Qwen3MoeForCausalLM.from_pretrained(
        export(run.trained(), "huggingface", folder / "back").folder
    )
    state, theirs = run.module().get_submodule("net").state_dict(), back.state_dict()
    assert state.keys() == theirs.keys() == base.keys()
    assert [name for name in theirs if not torch.equal(theirs[name], state[name])] == []
    name = "model.layers.0.mlp.experts.down_proj"
    assert all(not torch.equal(theirs[name][each], base[name][each]) for each in range(4))


@pytest.mark.long
@pytest.mark.timeout(200)
def test_predicted_bytes_are_those_that_are_sent(folder: Path) -> None:
    """Send each row to all experts, so that the ranks exchange equal numbers of rows, as the estimate assumes."""
    priced = {"layout": {"hardware": "h100-sxm"}, "training": {"precision": "fp32"}}
    config = config_of("qwen3_moe", num_experts_per_tok=4)
    plan = compiled(folder, merged(merged(made.recipe(DECODER | {"config": config}, "next"), TWO), priced))
    assert plan.estimate is not None
    predicted = sum(each.bytes_sent for each in plan.estimate.transfers if each.what.endswith("all-to-all"))
    assert predicted > 0
    for found in watch(plan, num_steps=2):
        assert predicted == pytest.approx(found.sent["exchanged"], rel=0.01)


@pytest.mark.timeout(200)
def test_a_rank_with_half_of_the_experts_does_as_many_operations(folder: Path) -> None:
    """Count them on a rank of `expert`, which computes rows of all ranks."""
    plan = compiled(folder, merged(recipe_of(config_of("qwen3_moe")), TWO))
    node = plan.graph.node("net")
    assert node.component is not None
    layer, specs = read_layer(node.component), {"main": plan.graph.specs()["tokens"]}
    found = []
    for parts in (1, 2):
        weights = []
        for item in plan.parameters:
            first, *rest = item.shape
            shape = (first // parts if ".experts." in item.name else first, *rest)
            weights.append(Weight(item.name.removeprefix("net."), shape, True))
        use = Use(specs, next(iter(node.outputs.values())), {"main": False}, tuple(weights))
        found.append(sum(each.flops for each in layer.products(use)))
    assert found[0] == found[1] > 0
