"""Published models of images taken in: the logits and gradients of the library, whatever the family."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import declarative_train as dt
from tests.packs.pretrained import published_vision as made


def apart(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, relative to the largest value where that is above 1."""
    return ((found - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", made.cases(*made.QUICK))
def test_logits_and_gradients_are_those_of_the_library(tmp_path: Path, name: str) -> None:
    """In evaluation in float32; in training, where few values to normalise over make sums in another order count, in
    float64."""
    theirs, path = made.write(tmp_path, name)
    plan = dt.load(path).plan()
    module = plan.module()
    ours = module.get_submodule("net")
    for key, value in made.theirs_as_ours(theirs, plan.plan, ours, grad=False).items():
        assert torch.equal(ours.state_dict()[key], value), key
    for dtype, training in ((torch.float32, False), (torch.float64, True)):
        for each in (module, theirs):
            each.train(training).to(dtype).zero_grad()
        image = made.images().to(dtype)
        wanted, found = made.logits(theirs(image)), made.logits(ours(image))
        assert apart(found, wanted) < 1e-5
        weight = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(2), dtype=dtype)
        (wanted * weight).sum().backward()
        (found * weight).sum().backward()
        worst = 0.0
        for key, gradient in made.theirs_as_ours(theirs, plan.plan, ours, grad=True).items():
            scale = gradient.abs().max().clamp(min=1e-3)
            worst = max(worst, ((ours.get_parameter(key).grad - gradient).abs().max() / scale).item())
        print(f"{name} {dtype}: logits {apart(found, wanted):.1e}, gradients {worst:.1e}")
        assert worst < 1e-5


def test_a_head_of_another_size_starts_anew(tmp_path: Path) -> None:
    """`exclude` leaves out what it selects and nothing else; without it the head does not fit, and the hint says so."""
    theirs, path = made.write(tmp_path, "vit", node=", out_features: 7", exclude=", exclude: [logits]")
    ours = dt.load(path).plan().module().get_submodule("net")
    body = {key: value for key, value in ours.state_dict().items() if not key.startswith("logits")}
    assert ours.state_dict()["logits.weight"].shape == (7, 32)
    assert torch.equal(body["norm.weight"], theirs.state_dict()["vit.layernorm.weight"])
    assert torch.equal(body["patches.weight"], theirs.state_dict()["vit.embeddings.patch_embeddings.projection.weight"])
    path.write_text(path.read_text().replace(", exclude: [logits]", ""))
    problem, *_ = dt.load(path).lint()
    assert "classifier.weight (5, 32) cannot fill `logits.weight` (7, 32)" in problem.message
    assert "exclude: [logits]" in str(problem.help)


@pytest.mark.parametrize(
    ("exclude", "said"),
    [
        ("[head]", "`head` under `exclude`, which matches no parameter here"),
        ("logits", "`exclude` is the text `logits`, expected a list"),
    ],
)
def test_an_exclusion_that_means_nothing_is_told(tmp_path: Path, exclude: str, said: str) -> None:
    _, path = made.write(tmp_path, "vit", exclude=f", exclude: {exclude}")
    (problem,) = dt.load(path).lint()
    assert said in problem.message
