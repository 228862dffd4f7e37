"""CLIP taken in: features, logits, loss and gradients of transformers; tuned by several ranks as by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import declarative_train as dt
from declarative_train.app.api.tables import step_rows
from declarative_train.plan.tensor_maps import parts_in
from tests.packs.pretrained import published_clip as made


def outputs(ours: Any, images: torch.Tensor, words: torch.Tensor, **more: torch.Tensor) -> dict[str, torch.Tensor]:
    names = ("image", "text", "image_features", "text_features")
    return dict(zip(names, ours(image=images, tokens=words, **more), strict=True))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", sorted(made.CONFIGS))
def test_features_logits_loss_and_gradients_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    theirs, path = made.write(tmp_path, name)
    plan = dt.load(path).plan()
    ours = plan.module().eval().get_submodule("both")
    images, words = made.pairs(name, 6)
    wanted = theirs(input_ids=words, pixel_values=images, return_loss=True)
    found = outputs(ours, images, words)
    same = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found["image_features"], wanted.vision_model_output.pooler_output, **same)
    torch.testing.assert_close(found["text_features"], wanted.text_model_output.pooler_output, **same)
    torch.testing.assert_close(found["text"], wanted.text_embeds, **same)
    logits = found["image"] @ found["text"].T
    torch.testing.assert_close(logits, wanted.logits_per_image, **same)
    rows = torch.arange(6)
    loss = (torch.nn.functional.cross_entropy(logits, rows) + torch.nn.functional.cross_entropy(logits.T, rows)) / 2
    torch.testing.assert_close(loss, wanted.loss, **same)
    wanted.loss.backward()
    loss.backward()
    held = dict(theirs.named_parameters())
    for key, parameter in ours.named_parameters():
        parts = parts_in(plan.plan.weights[0].tensors, key)
        graded = torch.cat([held[part.name].grad.reshape((1,) * -part.ones + held[part.name].shape) for part in parts])
        scale = graded.abs().max().item()
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad / scale, graded / scale, **same, msg=key)
    assert {
        part.name for key, _ in ours.named_parameters() for part in parts_in(plan.plan.weights[0].tensors, key)
    } == {*held}


def test_a_mask_hides_words(tmp_path: Path) -> None:
    theirs, path = made.write(tmp_path, "clip")
    text = path.read_text().replace("tokens: words}", "tokens: words, mask: keep}")
    path.write_text(text.replace("  graph:\n", "  graph:\n    keep: words > 5\n"))
    ours = dt.load(path).plan().module().eval().get_submodule("both")
    images, words = made.pairs("clip", 6)
    keep = words > 5
    keep[:, 0] = True  # a query that sees nothing gives 0 here, and a mean of all there
    wanted = theirs.get_text_features(input_ids=words, attention_mask=keep.long()).pooler_output
    found = outputs(ours, images, words, mask=keep)["text_features"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    whole = outputs(ours, images, words, mask=torch.ones_like(keep))["text_features"]
    assert not torch.allclose(found, whole, rtol=1e-3, atol=1e-3)


def losses(run: Any) -> list[float]:
    found = [row["training/loss"] for row in step_rows(run.events)]
    assert len(found) == 2
    return found


MODES = {  # how many pairs are compared of a batch of 8; the microbatches of a pipeline have a group each
    "ddp": ("parallelism: ddp", 8),
    "fsdp": ("parallelism: fsdp", 8),
    "pipeline": ("parallelism: {pipeline: {stages: 2, microbatches: 2}}", 4),
}


@pytest.mark.long
@pytest.mark.timeout(100)
@pytest.mark.parametrize("mode", sorted(MODES))
def test_pairs_are_found_among_those_of_all_ranks(tmp_path: Path, mode: str) -> None:
    """Two steps: every loss, and the model after them, are those of one process that sees the whole batch."""
    exact = {"training.precision": "fp64", "logging.every": "1 step", "training.global_batch_size": 8}
    words, over = MODES[mode]
    _, path = made.write(tmp_path, "clip")
    path.write_text(path.read_text().replace("over: 4 samples", f"over: {over} samples"))
    alone = dt.load(path, set=exact).run(quiet=True)
    started = dict(dt.load(path, set=exact).plan().module().named_parameters())
    path.write_text(path.read_text().replace("{device: cpu}", "{device: cpu, gpus: 2}") + words + "\n")
    spread = dt.load(path, set=exact).run(quiet=True)
    assert losses(spread) == pytest.approx(losses(alone), rel=1e-10)
    found = dict(spread.module().named_parameters())
    for key, value in alone.module().named_parameters():
        torch.testing.assert_close(found[key], value, rtol=1e-10, atol=1e-10, msg=key)
        assert (value - started[key]).abs().max() > 1e-7, key
