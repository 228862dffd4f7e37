"""A published model of every family is tuned in parts as it is by one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import declarative_train as dt
from tests.runtime import published_encoders, published_models, published_vision

EXACT = {"training.precision": "fp64"}  # sums in another order count, most where batch norm sees few values
MODES = {
    "fsdp": "parallelism: fsdp",
    "pipeline": "parallelism: {pipeline: {stages: 2, microbatches: 2}}",
}
WRITE = {
    **dict.fromkeys(("gemma2", "gemma3", "gpt2_untied", "llama", "llama3", "qwen2"), published_models.write),
    **dict.fromkeys(("BertForSequenceClassification", "RobertaForMaskedLM"), published_encoders.write),
    **dict.fromkeys(("timm_resnet", "vit"), published_vision.write),
}


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("name", sorted(WRITE))
def test_a_published_model_is_tuned_the_same_in_every_mode(tmp_path: Path, name: str, mode: str) -> None:
    """Two steps from its weights: every rank reads what it holds, and the model after them is that of one process."""
    told = {"node": ", over: 2 samples"} if name == "timm_resnet" else {}
    _, path = WRITE[name](tmp_path, name, **told)
    alone = dt.load(path, set=EXACT).run(quiet=True).module()
    path.write_text(path.read_text().replace("{device: cpu}", "{device: cpu, gpus: 2}") + MODES[mode] + "\n")
    spread = dt.load(path, set=EXACT).run(quiet=True).module()
    started = dt.load(path, set=EXACT).plan().module()
    moved = 0.0
    for key, value in alone.named_parameters():
        torch.testing.assert_close(spread.get_parameter(key), value, rtol=1e-9, atol=1e-9, msg=key)
        moved = max(moved, (value - started.get_parameter(key)).abs().max().item())
    assert moved > 1e-4
