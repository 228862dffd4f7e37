"""Recipes of many kinds, as far as their models go: blocks, copies, wires, names."""

from __future__ import annotations

from collections import Counter

from declarative_train.recipe.model.tree import BlockNode, ExpressionNode, LayerNode, ReuseNode

RESNET = """
blocks:
  conv_norm:
    params: {channels: 64, size: 3, stride: 1}
    inputs: [x]
    graph:
      conv: {type: conv2d, out_channels: "{{ params.channels }}", kernel_size: "{{ params.size }}",
             stride: "{{ params.stride }}", padding: "{{ params.size // 2 }}", bias: false}
      norm: {type: batch_norm, over: 32 samples}
    output: norm
  bottleneck:
    params: {width: 64, stride: 1, project: false}
    inputs: [x]
    graph:
      a:     {type: conv_norm, channels: "{{ params.width }}", size: 1}
      a_act: {type: relu}
      b:     {type: conv_norm, channels: "{{ params.width }}", stride: "{{ params.stride }}"}
      b_act: {type: relu}
      c:     {type: conv_norm, channels: "{{ params.width * 4 }}", size: 1}
      skip:  {type: conv_norm, channels: "{{ params.width * 4 }}", size: 1, stride: "{{ params.stride }}",
              input: x, when: "{{ params.project }}"}
      out:   relu(c + skip)
    output: out
  stage:
    params: {width: 64, depth: 3, stride: 2}
    inputs: [x]
    graph:
      units: {type: bottleneck, repeat: "{{ params.depth }}", width: "{{ params.width }}",
              stride: "{{ params.stride if index == 0 else 1 }}", project: "{{ index == 0 }}"}
    output: units
graph:
  stem:   {type: conv_norm, channels: 64, size: 7, stride: 2, input: image}
  act:    {type: relu}
  pool:   {type: max_pool2d, kernel_size: 3, stride: 2, padding: 1}
  stages: {type: stage, repeat: 4, width: "{{ 64 * 2 ** index }}", depth: "{{ [3, 4, 6, 3][index] }}",
           stride: "{{ 1 if index == 0 else 2 }}"}
  pooled: mean(stages, dim=[2, 3])
  logits: {type: linear, out_features: 37}
"""

LLAMA = """
blocks:
  decoder:
    params: {width: 2048, heads: 32, kv_heads: 8, hidden: 8192}
    inputs: [x]
    graph:
      norm1: {type: rms_norm}
      attn:  {type: self_attention, heads: "{{ params.heads }}", kv_heads: "{{ params.kv_heads }}",
              causal: true, rotary: {base: 500000}, bias: false}
      mid:   x + attn
      norm2: {type: rms_norm}
      gate:  {type: linear, out_features: "{{ params.hidden }}", bias: false}
      up:    {type: linear, out_features: "{{ params.hidden }}", bias: false, input: norm2}
      gated: silu(gate) * up
      down:  {type: linear, out_features: "{{ params.width }}", bias: false}
      out:   mid + down
    output: out
graph:
  tokens: packed[:, :-1]
  next:   packed[:, 1:]
  embed:  {type: embedding, num_embeddings: "{{ vars.vocabulary }}", embedding_dim: "{{ vars.width }}", input: tokens}
  layers: {type: decoder, repeat: "{{ vars.layers }}", width: "{{ vars.width }}"}
  norm:   {type: rms_norm}
  logits: {type: linear, out_features: "{{ vars.vocabulary }}", bias: false}
"""

SEQ2SEQ = """
blocks:
  encoder_layer:
    params: {width: 512, heads: 8}
    inputs: [x, keep]
    graph:
      norm1: {type: layer_norm}
      attn:  {type: self_attention, heads: "{{ params.heads }}", inputs: {mask: keep}}
      mid:   x + attn
      norm2: {type: layer_norm}
      ffn:   {type: mlp, hidden: ["{{ params.width * 4 }}"], out_features: "{{ params.width }}", activation: gelu}
      out:   mid + ffn
    output: out
  decoder_layer:
    params: {width: 512, heads: 8}
    inputs: [x, memory, keep]
    graph:
      norm1: {type: layer_norm}
      attn:  {type: self_attention, heads: "{{ params.heads }}", causal: true}
      mid1:  x + attn
      norm2: {type: layer_norm}
      cross: {type: cross_attention, heads: "{{ params.heads }}", inputs: {context: memory, mask: keep}}
      mid2:  mid1 + cross
      norm3: {type: layer_norm}
      ffn:   {type: mlp, hidden: ["{{ params.width * 4 }}"], out_features: "{{ params.width }}", activation: gelu}
      out:   mid2 + ffn
    output: out
graph:
  keep:    german != 0
  embed:   {type: embedding, num_embeddings: 32000, embedding_dim: 512, input: german}
  pos:     {type: learned_positions}
  encoder: {type: encoder_layer, repeat: 6, inputs: {keep: keep}}
  memory:  {type: layer_norm}
  given:   english[:, :-1]
  wanted:  english[:, 1:]
  embed_t: {type: reuse, node: embed, input: given}
  pos_t:   {type: learned_positions}
  decoder: {type: decoder_layer, repeat: 6, inputs: {memory: memory, keep: keep}}
  norm:    {type: layer_norm}
  logits:  {type: linear, out_features: 32000, bias: false}
"""


def test_resnet50_has_its_53_convolutions_and_4_stages(open_model) -> None:
    opened = open_model(RESNET, fields=["image", "label"])
    types = Counter(node.layer.type for node in opened.nodes() if isinstance(node, LayerNode))
    assert types["conv2d"] == types["batch_norm"] == 53
    assert [len(opened.node(f"stages.{i}").scope.nodes) for i in range(4)] == [3, 4, 6, 3]
    assert opened.scope.units == ("stages.0", "stages.1", "stages.2", "stages.3")
    assert opened.scope.inputs == ("image",)
    assert opened.node("stages.2.units.0.b.conv").layer.stride == 2
    assert opened.node("stages.2.units.1.b.conv").layer.stride == 1
    assert opened.node("stages.3.units.2.c.conv").layer.out_channels == 2048


def test_a_node_that_is_off_stands_for_its_first_input(open_model) -> None:
    opened = open_model(RESNET, fields=["image"])
    assert opened.node("stages.0.units.0.out").inputs == {"c": "c:output", "skip": "skip:output"}
    assert opened.node("stages.0.units.1.out").inputs == {"c": "c:output", "skip": "x"}
    assert "stages.0.units.1.skip" not in {node.path for node in opened.nodes()}


def test_llama_chains_its_decoders(open_model) -> None:
    vocabulary = {"width": 2048, "layers": 16, "vocabulary": 128256}
    opened = open_model(LLAMA, fields=["packed"], objective=["logits", "next"], vars=vocabulary)
    assert [node.name for node in opened.scope.nodes][:5] == ["tokens", "next", "embed", "layers.0", "layers.1"]
    assert opened.node("layers.0").inputs == {"x": "embed:output"}
    assert opened.node("layers.7").inputs == {"x": "layers.6:output"}
    assert opened.node("norm").inputs == {"x": "layers.15:output"}
    attention = opened.node("layers.3.attn").layer
    assert (attention.kv_heads, attention.rotary.base, attention.bias) == (8, 500000, False)
    assert opened.node("layers.3.gated").inputs == {"gate": "gate:output", "up": "up:output"}
    assert opened.scope.outputs == {"logits": "logits:output", "next": "next:output"}
    assert opened.scope.units == tuple(f"layers.{i}" for i in range(16))


def test_seq2seq_shares_memory_and_keep_between_copies(open_model) -> None:
    opened = open_model(SEQ2SEQ, fields=["german", "english"], objective=["logits", "wanted"])
    for i in range(6):
        first = "pos_t:output" if i == 0 else f"decoder.{i - 1}:output"
        assert opened.node(f"decoder.{i}").inputs == {"x": first, "memory": "memory:output", "keep": "keep:output"}
    assert opened.node("memory").inputs == {"x": "encoder.5:output"}
    assert opened.node("decoder.0.cross").inputs == {"query": "norm2:output", "context": "memory", "mask": "keep"}
    reuse = opened.node("embed_t")
    assert isinstance(reuse, ReuseNode)
    assert (reuse.target, reuse.inputs) == ("embed", {"x": "given:output"})
    assert isinstance(opened.node("encoder.0.ffn"), BlockNode)
    assert opened.node("encoder.0.ffn.layers.0.linear").layer.out_features == 2048


def test_the_vae_and_its_objective(open_model) -> None:
    text = """
graph:
  encoder: {type: mlp, hidden: [256], activation: gelu, input: image}
  mu:      {type: linear, out_features: 16, input: encoder}
  log_var: {type: linear, out_features: 16, input: encoder}
  z:       mu + exp(log_var / 2) * randn_like(mu)
  decoder: {type: mlp, hidden: [256], out_features: 64, activation: gelu}
  error:   sum((decoder - image) ** 2, dim=-1)
  kl:      -0.5 * sum(1 + log_var - mu ** 2 - exp(log_var), dim=-1)
"""
    opened = open_model(text, fields=["image"], objective=["error", "kl"])
    assert opened.node("decoder").inputs == {"x": "z:output"}
    z = opened.node("z")
    assert isinstance(z, ExpressionNode)
    assert z.expression.is_random
    assert opened.scope.outputs == {"error": "error:output", "kl": "kl:output"}
    assert not opened.diagnostics


def test_outputs_of_a_layer_have_names(open_model) -> None:
    text = """
graph:
  lstm:  {type: lstm, hidden_size: 128, num_layers: 2, dropout: 0.1, input: past}
  last:  lstm.hidden[:, -1]
  next:  {type: linear, out_features: 24}
"""
    opened = open_model(text, fields=["past"], objective=["next", "lstm.hidden"])
    assert opened.node("last").inputs == {"lstm.hidden": "lstm:hidden"}
    assert opened.expanded.wire("lstm.hidden") == "lstm:hidden"
    assert opened.expanded.wire("past") == "past"
    assert opened.scope.outputs == {"next": "next:output", "lstm.hidden": "lstm:hidden"}
    assert opened.scope.units == ("lstm", "next")
