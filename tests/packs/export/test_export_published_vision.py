"""Published models of images given back: the library and dtrain read what was tuned, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import declarative_train as dt
from declarative_train.packs.export.export import export
from tests.packs.pretrained import published_vision as made


def read_by(library: str, name: str, folder: Path) -> Any:
    """The model of the library, with nothing missing and nothing left over."""
    if library == "huggingface":
        from transformers import AutoModelForImageClassification

        model, report = AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
        assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
        return model.eval()
    if library == "timm":
        import timm

        return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    model = made.CASES[name].make().eval()
    model.load_state_dict(torch.load(folder / "model.pth", weights_only=True), strict=True)
    return model


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", made.cases("vit"))
def test_an_untouched_model_is_given_back_to_the_bit(tmp_path: Path, name: str) -> None:
    """One step with a learning rate of 0, which moves running statistics alone: every tensor of the library."""
    theirs, path = made.write(tmp_path, name)
    library = made.CASES[name].library
    run = dt.load(path, set={"training.steps": 1, "training.optimizer.lr": 0.0}).run(quiet=True)
    folder = export(run.trained(), library, tmp_path / "back").folder
    back = read_by(library, name, folder)
    assert {key: value.shape for key, value in back.state_dict().items()} == {
        key: value.shape for key, value in theirs.state_dict().items()
    }
    assert all(torch.equal(value, theirs.get_parameter(key)) for key, value in back.named_parameters())
    ours = run.module().eval().get_submodule("net")
    for key, value in made.theirs_as_ours(back, dt.load(path).plan().plan, ours, grad=False).items():
        assert torch.equal(ours.state_dict()[key], value), key
    torch.testing.assert_close(made.logits(back(made.images())), made.logits(ours(made.images())), rtol=1e-5, atol=1e-5)
