"""Small encoders that transformers makes, in folders as they are published, and recipes that take them in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 20,
}
DISTILLED = {"vocab_size": 96, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 20}
CLASSES: dict[str, dict[str, Any]] = {  # classes of transformers, and what their configs say next to the sizes
    "BertForMaskedLM": {"hidden_act": "gelu_new"},
    "BertForSequenceClassification": {"num_labels": 3, "layer_norm_eps": 1e-3},
    "BertForTokenClassification": {"num_labels": 5, "type_vocab_size": 1},
    "BertModel": {},
    "RobertaForMaskedLM": {"hidden_act": "relu"},
    "RobertaForSequenceClassification": {"num_labels": 1},
    "RobertaForTokenClassification": {},
    "RobertaModel": {"pad_token_id": 4},
    "XLMRobertaForMaskedLM": {},
    "CamembertForSequenceClassification": {"num_labels": 3},
    "DistilBertForMaskedLM": {},
    "DistilBertForSequenceClassification": {"num_labels": 3},
    "DistilBertForTokenClassification": {"activation": "relu"},
    "DistilBertModel": {},
}
TOKENS = 12


def make(name: str, folder: Path, **told: Any) -> Any:
    """The model, in evaluation mode, with its folder written. Every parameter is drawn, so that no zero hides one, but
    what pads, which stays at zero."""
    import transformers

    kind: Any = getattr(transformers, name)
    torch.manual_seed(0)
    sizes = DISTILLED if name.startswith("Distil") else SIZES
    model = kind(kind.config_class(**{**sizes, **CLASSES.get(name, {}), **told})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    return model


def recipe(folder: Path, config: Any, node: str, more: str) -> str:
    """Trains on made tokens, `TOKENS` of them in a row, some of them padding, of two types where it has two."""
    padding, types = config.pad_token_id, ", types: kinds" if getattr(config, "type_vocab_size", 0) > 1 else ""
    published = folder / "published"
    return f"""
name: tuned
data:
  source: {{type: text, path: {folder / "story.txt"}}}
  window: {{length: {TOKENS}}}
  fields: {{tokens: {{column: tokens}}}}
model:
  graph:
    small: tokens - tokens // 90 * 90 + 5
    ids: where(tokens == 32, {padding}, small)
    keep: ids != {padding}
{"    kinds: int(ids > 40)" if types else ""}
    lm: {{type: bert, from: {published}, inputs: {{tokens: ids, mask: keep{types}}}{node}}}
    goal: mean(float(keep), dim=1)
    guess: mean(flatten(lm, start_dim=1), dim=1)
  weights: {{path: {published}, format: huggingface}}
objective: {{loss: {{type: mse, input: guess, target: goal}}}}
training: {{steps: 2, global_batch_size: 4, optimizer: {{type: sgd, lr: 1e-2}}}}
layout: {{device: cpu}}
logging: {{dir: {folder / "runs"}}}
{more}
"""


def write(folder: Path, name: str, node: str = "", more: str = "", **told: Any) -> Any:
    """(the model, the path of a recipe that tunes it)."""
    model = make(name, folder / "published", **told)
    (folder / "story.txt").write_text("a token after another, over and over again. " * 20)
    path = folder / "tuned.yaml"
    path.write_text(recipe(folder, model.config, node, more))
    return model, path
