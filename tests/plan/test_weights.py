"""Files of start values are held against the model before anything starts, and without reading their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

HIDDEN = {"weight": torch.zeros(32, 20), "bias": torch.zeros(32)}


def below(path: Path, rename: str = "{}") -> str:
    return f"model: {{weights: {{hidden: {{path: {path}, rename: {rename}}}}}}}"


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize(
    ("tensors", "rename", "words", "way_out"),
    [
        (HIDDEN, "{}", None, None),
        ({f"enc.{k}": v for k, v in HIDDEN.items()}, '{enc.: ""}', None, None),
        (HIDDEN | {"head.weight": torch.zeros(1)}, "{head.: null}", None, None),
        (HIDDEN | {"fc.w": torch.zeros(1)}, "{}", "fc.w of the file not in the model", 'rename: {"fc.": null}'),
        ({"weight": HIDDEN["weight"]}, "{}", "bias of the model below `hidden` not in the file", None),
        (HIDDEN | {"bias": torch.zeros(3)}, "{}", "bias is (3,) in the file, (32,) in the model", None),
        ({f"enc.{k}": v for k, v in HIDDEN.items()}, "{}", "of the file not in the model", '{"enc.": ""}'),
    ],
)  # fmt: skip
def test_names_and_shapes_are_compared(  # type: ignore[no-untyped-def]
    compiled,
    tmp_path: Path,
    kind: str,
    tensors: dict[str, torch.Tensor],
    rename: str,
    words: str | None,
    way_out: str | None,
) -> None:
    """They were found after the launch, without a place."""
    path = tmp_path / f"w.{kind}"
    save_file(tensors, path) if kind == "safetensors" else torch.save({"state_dict": tensors}, path)
    plan, diagnostics = compiled(below(path, rename))
    if words is None:
        assert plan is not None, diagnostics
        return
    (found,) = diagnostics
    assert (plan, found.code, found.span.line) == (None, "U106", 2)
    assert words in found.message
    assert way_out is None or (found.help is not None and way_out in found.help)


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"\x02\0\0\0\0\0\0\0[]", b'\x08\0\0\0\0\0\0\0{"a": 1}'])
def test_a_file_that_is_no_safetensors_is_told(compiled, tmp_path: Path, content: bytes) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    _, (found,) = compiled(below(path))
    assert found.code == "U106"
    assert "cannot be read" in found.message


def test_batch_norm_statistics_may_be_in_the_file_or_not(compiled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    graph = "graph: {norm: {type: batch_norm, over: 24 samples, input: x}, hidden: {input: norm}}"
    own = {"weight": torch.ones(20), "bias": torch.zeros(20)}
    for tensors in (own, own | {"running_mean": torch.zeros(20), "running_var": torch.ones(20)}):
        save_file(tensors, tmp_path / "n.safetensors")
        plan, diagnostics = compiled(f"model: {{{graph}, weights: {{norm: {{path: {tmp_path}/n.safetensors}}}}}}")
        assert plan is not None, diagnostics
