"""Files of start values are held against the model before anything starts, and without reading their numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from declarative_train.core import machine
from declarative_train.plan.checkpoint_files import FORMAT, seal

HIDDEN = {"weight": torch.zeros(32, 20), "bias": torch.zeros(32)}

APART = {"a.weight": torch.zeros(20, 20), "b.weight": torch.zeros(12, 20)}
APART |= {"b.bias": torch.zeros(12), "a.bias": torch.zeros(20)}


def below(path: Path, rename: str = "{}") -> str:
    return f"model: {{weights: {{hidden: {{path: {path}, rename: {rename}}}}}}}"


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize(
    ("tensors", "rename", "words", "way_out"),
    [
        (HIDDEN, "{}", None, None),
        ({f"enc.{k}": v for k, v in HIDDEN.items()}, '{enc.: ""}', None, None),
        (HIDDEN | {"head.weight": torch.zeros(1)}, "{head.: drop}", None, None),
        (HIDDEN | {"fc.w": torch.zeros(1)}, "{}", "fc.w of the file not in the model", 'rename: {"fc.": drop}'),
        (
            HIDDEN | {"out.a.w": torch.zeros(1), "out.b.w": torch.zeros(1), "x": torch.zeros(1)},
            *("{}", "of the file not in the model", 'rename: {"out.": drop, "x": drop}'),
        ),
        ({"weight": HIDDEN["weight"]}, "{}", "bias of the model below `hidden` not in the file", None),
        (HIDDEN | {"bias": torch.zeros(3)}, "{}", "bias is (3,) in the file, but (32,) in the model", None),
        ({f"enc.{k}": v for k, v in HIDDEN.items()}, "{}", "of the file not in the model", '{"enc.": ""}'),
        (APART, '{"{a,b}": ""}', None, None),
        (APART | {"b.weight": torch.zeros(13, 20)}, '{"{a,b}": ""}', "weight is (33, 20) in the file, but", None),
        (APART | {"b.weight": torch.zeros(12, 19)}, '{"{a,b}": ""}', "by rows to weight, but they differ", None),
        (APART | {"weight": HIDDEN["weight"]}, '{"{a,b}": ""}', "two tensors that would both be renamed to", None),
        (HIDDEN | {"0.freq": torch.zeros(3)}, '{"*.freq": drop}', None, None),
        ({f"enc.7.{k}": v for k, v in HIDDEN.items()}, '{"enc.*.bias": "bias*", "enc.*": ""}', "has 0 `*`, but", None),
        ({f"enc.7.{k}": v for k, v in HIDDEN.items()}, '{"enc.{0..9}.*": "*"}', "has 1 `*`, but the key", None),
        (HIDDEN, '{"{a": ""}', "has `{a` under `rename`: a selector is names joined by dots", None),
        (HIDDEN, '{a: "b*"}', "has `*` or `{a,b}`, which the key must have too", None),
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


@pytest.mark.parametrize("content", [b"not torch at all", b""])
def test_a_file_that_is_none_of_torch_is_told(compiled, tmp_path: Path, content: bytes) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "w.pt"
    path.write_bytes(content)
    _, (found,) = compiled(below(path))
    assert (found.code, found.message.endswith("w.pt cannot be read: it is not a torch file")) == ("U106", True)


@pytest.mark.parametrize("is_archive", [True, False])
def test_code_in_a_file_of_torch_is_told_and_not_run(compiled, tmp_path: Path, is_archive: bool) -> None:  # type: ignore[no-untyped-def]
    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / "w.pt"
    torch.save({"weight": Planted()}, path, _use_new_zipfile_serialization=is_archive)
    _, (found,) = compiled(below(path))
    assert (found.code, "contains more than tensors, and its code is not executed" in found.message) == ("U106", True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("is_archive", [True, False])
def test_shapes_in_a_file_of_torch_are_known_in_either_format(compiled, tmp_path: Path, is_archive: bool) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "w.pt"
    torch.save(HIDDEN, path, _use_new_zipfile_serialization=is_archive)
    plan, diagnostics = compiled(below(path))
    assert plan is not None, diagnostics
    torch.save(HIDDEN | {"bias": torch.zeros(3)}, path, _use_new_zipfile_serialization=is_archive)
    _, (found,) = compiled(below(path))
    assert (found.code, "bias is (3,) in the file" in found.message) == ("U106", True)


def test_batch_norm_statistics_may_be_in_the_file_or_not(compiled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    graph = "graph: {norm: {type: batch_norm, over: 24 samples, input: x}, hidden: {input: norm}}"
    own = {"weight": torch.ones(20), "bias": torch.zeros(20)}
    for tensors in (own, own | {"running_mean": torch.zeros(20), "running_var": torch.ones(20)}):
        save_file(tensors, tmp_path / "n.safetensors")
        plan, diagnostics = compiled(f"model: {{{graph}, weights: {{norm: {{path: {tmp_path}/n.safetensors}}}}}}")
        assert plan is not None, diagnostics


@pytest.mark.parametrize("is_here", [True, False])
def test_a_package_that_only_the_run_needs_is_told_before_it(  # type: ignore[no-untyped-def]
    compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_here: bool
) -> None:
    """The header is read without it; the tensors are not."""
    save_file({"linear.weight": torch.ones(1, 1), "linear.bias": torch.ones(1)}, tmp_path / "w.safetensors")
    there = machine.find_spec
    monkeypatch.setattr(machine, "find_spec", lambda name: there(name) if is_here else None)
    _, diagnostics = compiled(below(tmp_path / "w.safetensors"))
    said = [each for each in diagnostics if "needs the package safetensors" in each.message]
    assert len(said) == (not is_here)
    assert all("declarative_train[safetensors]" in str(each.help) for each in said)


def checkpoint(folder: Path, step: int, shapes: object, best_step: int | None = None) -> None:
    """What a plan reads of one."""
    folder.mkdir(parents=True)
    (folder / "data").write_text("12345")
    manifest = {
        "format": FORMAT,
        "step": step,
        "state": {"best_step": best_step},
        "shapes": shapes,
        "files": {"data": {"size_bytes": 5}},
    }
    (folder / "manifest.json").write_bytes(seal(manifest))


SHAPES = {name: list(tensor.shape) for name, tensor in HIDDEN.items()}
OTHER = SHAPES | {"bias": [3]}


@pytest.mark.parametrize("asked", ["runs", "runs/2", "runs/2/checkpoints/step_00000002"])
@pytest.mark.parametrize("fits", [True, False])
def test_a_runs_checkpoint_is_looked_at_without_torch(compiled, tmp_path: Path, asked: str, fits: bool) -> None:  # type: ignore[no-untyped-def]
    """The best one of the newest run, as the run will take it."""
    right, wrong = (SHAPES, OTHER) if fits else (OTHER, SHAPES)
    checkpoint(tmp_path / "runs/1/checkpoints/step_00000009", 9, wrong)
    checkpoint(tmp_path / "runs/2/checkpoints/step_00000002", 2, right)
    checkpoint(tmp_path / "runs/2/checkpoints/step_00000004", 4, wrong, best_step=2)
    (tmp_path / "runs/3/checkpoints").mkdir(parents=True)  # a run that has not saved yet
    checkpoint(tmp_path / "runs/4/checkpoints/step_00000004", 4, wrong)
    (tmp_path / "runs/4/checkpoints/step_00000004/data").unlink()  # torn
    checkpoint(tmp_path / "runs/other", 4, wrong)  # no run
    plan, diagnostics = compiled(below(tmp_path / asked))
    if fits:
        assert plan is not None, diagnostics
    else:
        (found,) = diagnostics
        assert found.code == "U106"
        assert "bias is (3,) in the file, but (32,) in the model" in found.message


def test_a_folder_without_a_checkpoint_is_told(compiled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    _, (found,) = compiled(below(tmp_path))
    assert (found.code, "cannot be read: it has no complete checkpoint" in found.message) == ("U106", True)
    checkpoint(tmp_path / "step_00000001", 1, SHAPES)  # the folder of a run's checkpoints: the run takes none from it
    _, (found,) = compiled(below(tmp_path))
    assert found.code == "U106"


@pytest.mark.timeout(60)
def test_a_pipe_in_the_place_of_a_manifest_is_not_read(compiled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    checkpoint(tmp_path / "checkpoints/step_00000001", 1, SHAPES)
    manifest = tmp_path / "checkpoints/step_00000001/manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    _, (found,) = compiled(below(tmp_path))
    assert found.code == "U106"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 200_000,
        '{"format": 2, "files": {}, "shapes": 3, "state": 4}',
        '{"format": 2, "files": {}, "shapes": {"bias": 3}, "step": []}',
        '{"format": 2, "files": {}, "shapes": {"\\ud800": [3]}, "step": 1}',
        '{"format": 2, "files": 7}',
        '{"format": 1, "files": {}}',
    ],
)
def test_a_strange_manifest_is_left_to_the_run(compiled, tmp_path: Path, text: str) -> None:  # type: ignore[no-untyped-def]
    checkpoint(tmp_path / "checkpoints/step_00000001", 1, None)
    (tmp_path / "checkpoints/step_00000001/manifest.json").write_text(text)
    plan, diagnostics = compiled(below(tmp_path))
    assert plan is not None or [found.code for found in diagnostics] == ["U106"]


def test_a_selector_of_rename_that_meets_nothing_is_told(compiled, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save_file(HIDDEN, tmp_path / "w.safetensors")
    _, (found,) = compiled(below(tmp_path / "w.safetensors", '{"layers.*.gamma": "*.weight"}'))
    assert (found.code, "matches `layers.*.gamma`: nothing is renamed" in found.message) == ("U107", True)
