"""The operations of whole models next to torch's own counter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from declarative_train import planner
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.build import build, tie
from declarative_train.plan.plan import Plan
from declarative_train.recipe import load

RECIPES = Path(__file__).parent.parent.parent / "recipes"
ROWS = 2
BLOCKS = {
    "gpt": ("{type: gpt, vocabulary: 256, layers: 2, width: 16, heads: 4, kv_heads: 2}", "tokens"),
    "llama": ("{type: llama, vocabulary: 256, layers: 2, width: 16, heads: 4, kv_heads: 2, hidden: 24}", "tokens"),
}
TEXT = """
name: made
data:
  source: {{type: synthetic, kind: tokens, rows: 400}}
  window: {{length: 9, stride: 8}}
  fields: {{tokens: {{column: tokens, rows: ":-1"}}, next: {{column: tokens, rows: "1:"}}}}
model: {{graph: {{model: {block}}}}}
objective: {{loss: {{type: cross_entropy, input: model, target: next}}}}
training: {{steps: 3, global_batch_size: 4, optimizer: {{type: sgd, lr: 0.1}}, activation_checkpointing: {again}}}
"""


def counted(plan: Plan) -> tuple[int, int]:
    """By torch, per sample: forward and backward."""
    model = build(plan.graph, plan.plugins).double()
    tie(model, {item.name: item.tie for item in plan.parameters if item.tie is not None})
    for item in plan.parameters:
        model.get_parameter(item.name).requires_grad_(not item.frozen)
    rows = [example(spec) for spec in plan.graph.inputs.values()]
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            outputs = model(*rows)
        with FlopCounterMode(display=False) as backward:
            torch.stack([each.sum() for each in outputs if each.requires_grad]).sum().backward()
    return forward.get_total_flops() // ROWS, backward.get_total_flops() // ROWS


def example(spec: TensorSpec) -> torch.Tensor:
    shape = (ROWS, *spec.shape)
    if spec.is_floating:
        return torch.randn(shape, dtype=torch.float64)
    return torch.ones(shape, dtype=getattr(torch, spec.dtype))


@pytest.mark.parametrize(
    "name", ["digits_mlp_ddp2", "digits_resnet", "digits_vae", pytest.param("gpt_nano_fsdp2", marks=pytest.mark.packs)]
)
def test_a_shipped_recipe(name: str) -> None:
    loaded = load(str(RECIPES / f"{name}.yaml"))
    assert loaded.recipe is not None
    plan, _ = planner.compile(loaded.recipe)
    assert plan is not None
    assert (plan.flops.forward, plan.flops.backward) == counted(plan)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("again", ["none", "selective", "blocks", "all"])
def test_a_shipped_block(block: str, again: str, tmp_path: Path) -> None:
    text, source = BLOCKS[block]
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT.format(block=f"{text[:-1]}, input: {source}}}", again=again))
    loaded = load(str(path))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, diagnostics
    forward, backward = counted(plan)
    assert (plan.flops.forward, plan.flops.backward) == (forward, backward)
    logits = 2 * 8 * 16 * 256
    recomputed = {"none": 0, "blocks": forward - logits, "all": forward}
    recomputed["selective"] = recomputed["blocks"] // 2
    assert plan.flops.recomputed == pytest.approx(recomputed[again], rel=0.01)
