"""Recipes that `python -m benchmarks.lint` times: a long one, generated here, and a GPT of 12 layers."""

from __future__ import annotations

HEAD = """\
name: long_recipe
seed: 3
vars: {width: 64, classes: 10}
data:
  source: {type: csv, path: rows.csv}
  fields:
    label: {type: category, column: label, num_classes: 10}
"""

BLOCK = """\
    branch_{number}:
      params: {{width: 32, drop: 0.1}}
      inputs: [x]
      graph:
        norm:
          type: layer_norm
        wide:
          type: linear
          out_features: "{{{{ params.width * 2 }}}}"
        act:
          type: gelu
        drop:
          type: dropout
          p: "{{{{ params.drop }}}}"
        back:
          type: linear
          out_features: "{{{{ vars_width }}}}"
        out: x + back
      output: out
"""

NODES = """\
    in_{number}:
      type: linear
      out_features: "{{{{ vars.width }}}}"
      input: x_{number}
    branch_of_{number}:
      type: branch_{block}
      width: 48
    gate_{number}:
      type: linear
      out_features: "{{{{ vars.width }}}}"
      input: in_{number}
    sum_{number}: branch_of_{number} * sigmoid(gate_{number})
"""

TAIL = """\
    logits:
      type: linear
      out_features: "{{ vars.classes }}"
  parameters:
    norm: {weight_decay: 0}
    bias: {weight_decay: 0}
objective:
  loss: {type: cross_entropy, input: logits, target: label}
  metrics: [accuracy]
training:
  epochs: 3
  global_batch_size: 64
  optimizer: {type: adamw, lr: 1e-3, weight_decay: 0.01}
  lr_schedule: {type: cosine, warmup: 5%}
  clip_grad_norm: 1.0
evaluation: {every: 1 epoch}
parallelism: ddp
layout: {gpus: 2, device: cpu}
checkpoint: {every: 1 epoch, keep: 2}
"""

NUM_BLOCKS = 8
NUM_TOWERS = 60


def long_recipe() -> str:
    """Return a recipe of at least 1,000 lines. It has 60 inputs, each with a field, a small network and a gate, whose
    outputs are added, and eight blocks."""
    lines = [HEAD]
    for number in range(NUM_TOWERS):
        lines.append(f'    x_{number}:\n      columns: ["a_{number}_*"]\n      normalize: standard\n')
    lines.append("model:\n  blocks:\n")
    lines += [BLOCK.format(number=number).replace("vars_width", "64") for number in range(NUM_BLOCKS)]
    lines.append("  graph:\n")
    lines += [NODES.format(number=number, block=number % NUM_BLOCKS) for number in range(NUM_TOWERS)]
    lines.append(f"    added: {' + '.join(f'sum_{number}' for number in range(NUM_TOWERS))}\n")
    return "".join([*lines, TAIL])


GPT = """\
name: gpt_12_layers
data:
  source: {type: text, path: corpus.txt}
  window: {length: 257, stride: 256}
  fields:
    tokens: {column: tokens, rows: ":-1"}
    next:   {column: tokens, rows: "1:"}
  split: {validation: {type: last, fraction: 0.1}}
model:
  graph:
    gpt: {type: gpt, vocabulary: 256, layers: 12, width: 768, heads: 12, input: tokens}
objective:
  loss: {type: cross_entropy, input: gpt, target: next}
  metrics: [perplexity]
training:
  steps: 1000
  global_batch_size: 32
  optimizer: {type: adamw, lr: 6e-4, betas: [0.9, 0.95], weight_decay: 0.1}
  lr_schedule: {type: cosine, warmup: 2%}
  clip_grad_norm: 1.0
parallelism: ddp
layout: {gpus: 4}
"""
