"""CLIP given back: transformers and dtrain read what was tuned, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import declarative_train as dt
from declarative_train.packs.export.export import export
from tests.packs.pretrained import published_clip as made


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", sorted(made.CONFIGS))
def test_an_untouched_clip_is_given_back_to_the_bit(tmp_path: Path, name: str) -> None:
    from transformers import CLIPModel

    theirs, path = made.write(tmp_path, name)
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "back").folder
    before = json.loads((tmp_path / "published" / "config.json").read_text())
    assert json.loads((folder / "config.json").read_text()) == before
    back, report = CLIPModel.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted = theirs.state_dict()
    assert {key: value.shape for key, value in back.state_dict().items()} == {k: v.shape for k, v in wanted.items()}
    assert all(torch.equal(value, wanted[key]) for key, value in back.state_dict().items())


@pytest.mark.timeout(60)
def test_a_clip_that_was_trained_from_nothing_gets_a_config(tmp_path: Path) -> None:
    """Read by transformers, and by a recipe."""
    from transformers import CLIPModel

    _, path = made.write(tmp_path, "clip")
    sizes = (
        "vocabulary: 40, projection: 12, image_layers: 1, image_width: 16, image_heads: 2, patch_size: 4, "
        f"text_layers: 2, text_width: 24, text_heads: 3, text_hidden: 40, end: {made.END}, activation: gelu"
    )
    text = path.read_text()
    begun = text.replace(f"from: {tmp_path / 'published'}", sizes)
    path.write_text("\n".join(line for line in begun.splitlines() if "huggingface" not in line))
    run = dt.load(path).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "out").folder
    images, words = made.pairs("clip", 5)
    image, found, *_ = run.module().eval().get_submodule("both")(image=images, tokens=words)
    wanted = CLIPModel.from_pretrained(folder).eval()(input_ids=words, pixel_values=images)
    torch.testing.assert_close(image @ found.T, wanted.logits_per_image, rtol=1e-5, atol=1e-5)
    path.write_text(text.replace(str(tmp_path / "published"), str(folder)))
    again = dt.load(path).plan().module()
    for name, value in run.module().named_parameters():
        assert torch.equal(again.get_parameter(name), value), name
