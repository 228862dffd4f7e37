"""Graphs and objectives whose positions the ranks of `context` can divide, and the reasons for the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room

RECIPE = """
name: small
data:
  source: {{type: npy, path: data.npz}}
  fields: {{x: {{column: x, dtype: int64}}, y: {{column: y, dtype: int64}}}}
model:
  graph:
    embed: {{type: embedding, num_embeddings: 50, embedding_dim: 16, input: x}}
    {nodes}
    last: {{type: linear, out_features: 50}}
objective: {{losses: {{loss: {loss}}}}}
training: {{steps: 1, global_batch_size: 4, optimizer: {{type: sgd, lr: 0.1}}}}
parallelism: {parallelism}
layout: {{gpus: 4, device: cpu}}
"""
LOSS = "{type: cross_entropy, input: last, target: y}"
MOE = "m: {type: moe, experts: 4, top_k: 2, hidden: 8, input: embed}"
SECOND = MOE.replace("m:", "n:").replace("input: embed", "inputs: {x: m, balance: m.balance}")
BALANCED = f"{LOSS}, balance: {{type: mean, input: b}}"
ATTENTION = "a: {type: self_attention, heads: 2, causal: true}"


@pytest.mark.parametrize(
    ("nodes", "loss", "parallelism", "reason"),
    [
        (ATTENTION, LOSS, "{context: 2, data: {replicate: 2}}", ""),
        (ATTENTION, LOSS, "{context: 4}", ""),
        ("p: {type: learned_positions} | d: {type: dropout} | n: {type: layer_norm}", LOSS, "{context: 4}", ""),
        ("a: {type: linear, out_features: 16} | b: a + tanh(embed)", LOSS, "{context: 4}", ""),
        ("a: flip(embed, dims=[1])", LOSS, "{context: 4}", "`a` may mix positions"),
        ("a: cumsum(embed, dim=1)", LOSS, "{context: 4}", "`a` may mix positions"),
        ("a: embed - mean(embed, dim=1, keepdim=true)", LOSS, "{context: 4}", "`a` may mix positions"),
        ("a: {type: lstm, hidden_size: 8}", LOSS, "{context: 4}", "`a` mixes positions: a layer `lstm`"),
        ("a: {type: layer_norm, num_dims: 2}", LOSS, "{context: 4}", "`a` mixes positions: a layer `layer_norm`"),
        ("a: transpose(embed, 1, 2) | b: transpose(a, 1, 2)", LOSS, "{context: 4}", "`a` may mix positions"),
        ("a: log_softmax(embed, dim=-1) | b: a + mean(a ** 2, dim=-1, keepdim=true)", LOSS, "{context: 4}", ""),
        ("a: 'embed[:, :, :4]' | b: unsqueeze(sum(a, dim=2), -1) * a", LOSS, "{context: 4}", ""),
        ("a: 'concat(embed[:, 1:], embed[:, :1], dim=1)'", LOSS, "{context: 4}", "`a` may mix positions"),
        ("a: softmax(embed, dim=1)", LOSS, "{context: 4}", "`a` may mix positions"),
        ("a: softmax(embed, dim=-2)", LOSS, "{context: 4}", "`a` may mix positions"),
        (ATTENTION, LOSS, "{context: 2, tensor: 2}", ""),
        (ATTENTION, LOSS, "{context: 2, pipeline: {stages: 2, microbatches: 2}}", ""),
        (MOE, LOSS, "{context: 2, data: {replicate: 2}}", ""),
        (f"b: m.balance / 2 | {MOE}", BALANCED, "{context: 2, expert: 2}", ""),
        (f"b: n.balance | {MOE} | {SECOND}",
         BALANCED, "{context: 4}", ""),
        (f"b: mean(unsqueeze(m.balance, 1), dim=1) | {MOE}", BALANCED, "{context: 4}", "`m.balance` of `b` (B)"),
    ],
)  # fmt: skip
def test_what_can_be_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, loss: str, parallelism: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    tokens = np.zeros((8, 16), np.int64)
    np.savez("data.npz", x=tokens, y=tokens)
    nodes = "\n    ".join(nodes.split(" | "))
    Path("r.yaml").write_text(RECIPE.format(nodes=nodes, loss=loss, parallelism=parallelism))
    loaded = recipe_room.load("r.yaml")
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    found = [each for each in diagnostics if each.is_error]
    assert [each.code for each in found] == (["P113"] if reason else []), diagnostics
    assert reason in "".join(each.message for each in found)
    assert (plan is None) == bool(reason)
    if plan is not None:
        assert plan.layout.context is not None
        assert plan.layout.context.names == ("x", "y")
