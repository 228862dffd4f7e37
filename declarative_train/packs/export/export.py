"""Export of a trained model to a folder, which contains the model, a description of its inputs and outputs, and code
that loads the model."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from declarative_train.components.adapters.adapted import is_added
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.graph.build import build
from declarative_train.inference.trained import Trained, UsageError, drop_quantization
from declarative_train.inference.writing import set_default_mode
from declarative_train.packs.export.about import about
from declarative_train.packs.export.formats import FORMATS, check
from declarative_train.packs.export.library import LibraryModel, library_models, write_library_model
from declarative_train.packs.export.names import DTYPES, NAMES, PUBLISHED
from declarative_train.packs.export.peft import auto_class as peft_base
from declarative_train.packs.export.program import Inputs, Program, make_program
from declarative_train.packs.export.published import find_published_base, write_published
from declarative_train.packs.export.snippets import loading_code, readme
from declarative_train.plan.checkpoint_files import PLAN
from declarative_train.plan.codec import to_masked_json
from declarative_train.plan.plan import PublishedPlan

MARK = "preprocessing.json"  # a folder with this file is an earlier export and may be overwritten
_SAMPLE_ROWS = 4
_SAMPLE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export. `max_relative_error`: the largest difference between an output of the trained model and the
    same output of the written file after loading. If the largest value of this output is above 1, the difference is
    divided by it."""

    folder: Path
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    max_relative_error: float


def export(
    trained: Trained,
    to: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    outputs: Sequence[str] = (),
    numbers: Inputs = "raw",
    dtype: str | None = None,
) -> Exported:
    """Export a model in the format `to`, one of NAMES. `folder`: default `export-FORMAT` in the run's folder.
    `outputs`: nodes to export, as in `make_program`. `numbers`: whether inputs are raw table values or prepared fields.
    `dtype`: dtype of the weights, default that of the training. A failed export leaves no files. Raises UsageError and
    RunFailure."""
    if to not in NAMES:
        raise UsageError(f"there is no format `{to}`; help: {did_you_mean(to, NAMES)}")
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"there is no dtype `{dtype}`; help: {did_you_mean(dtype, DTYPES)}")
    if to in PUBLISHED:
        return _export_published(trained, to, folder, outputs, dtype)
    place = _place(trained, to, folder)
    form = FORMATS[to]
    form.require(to)
    if form.merges:
        trained = trained.merge_adapters()
    wanted = None if dtype is None else getattr(torch, dtype)
    if form.is_program and wanted is torch.bfloat16 and to == "onnx":
        raise UsageError("onnxruntime supports few operations in bfloat16 on a CPU; help: --dtype float16, or float32")
    kind: Inputs = numbers if form.is_program else "prepared"
    program = _make_program(trained, outputs, kind, wanted, is_program=form.is_program)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as name:
        made = Path(name) / place.name
        made.mkdir()
        form.write(program, made / form.file)
        max_relative_error = check(form, program, made / form.file)
        _write_docs(trained, program, to, made)
        _move_into_place(made, place)
    names = tuple(sorted(each.name for each in place.iterdir()))
    inputs, answers = tuple(entry.name for entry in program.inputs), tuple(answer.name for answer in program.outputs)
    return Exported(place, names, inputs, answers, max_relative_error)


def _export_published(
    trained: Trained, to: str, folder: str | os.PathLike[str] | None, outputs: Sequence[str], dtype: str | None
) -> Exported:
    """Export a node of the model in the format of the library `to`. `outputs`: the name of the node; it may be empty if
    only one node can be exported."""
    if len(outputs) > 1:
        raise UsageError("only one node at a time can be exported as a published model; help: name one with --output")
    FORMATS["safetensors"].require(to)
    trained = trained.merge_adapters()
    found = _choose_node(trained, to, outputs[0] if outputs else None)
    place = _place(trained, to, folder, mark=PLAN)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=f".{place.name}-") as name:
        made = Path(name) / place.name
        made.mkdir()
        wanted = None if dtype is None else getattr(torch, dtype)
        if isinstance(found, LibraryModel):
            write_library_model(trained, found, made, wanted)
        else:
            write_published(trained, found, to, made, wanted)
        _move_into_place(made, place)
    names = tuple(sorted(each.name for each in place.iterdir()))
    return Exported(place, names, (found.node,), (found.node,), 0.0)


def _choose_node(trained: Trained, to: str, wanted: str | None) -> PublishedPlan | LibraryModel:
    """Return the node to export in the format `to` of a library: the node `wanted` or, if this is None, the only node
    that is a model of the library. Raises UsageError."""
    library = PUBLISHED[to]
    models = list(library_models(trained.plan.graph))
    known: dict[str, PublishedPlan | LibraryModel] = {each.node: each for each in trained.plan.published}
    known |= {each.node: each for each in models if each.library == library}
    if wanted is not None and wanted not in known:
        raise UsageError(f"`{wanted}` is not a model of {library}; help: {did_you_mean(wanted, known)}")
    if not known:
        other = next(((each, way) for each in models for way, has in PUBLISHED.items() if has == each.library), None)
        hint = "--to safetensors has its tensors" if other is None else f"--to {other[1]} writes `{other[0].node}`"
        raise UsageError(f"no node of this run is a model of {library}; help: {hint}")
    if wanted is None and len(known) > 1:
        raise UsageError(f"several nodes can be exported; help: --output with one of {', '.join(known)}")
    return known[wanted or next(iter(known))]


def _move_into_place(made: Path, place: Path) -> None:
    """Move the folder `made` to `place`, which it replaces. Its files get default permissions, because safetensors
    creates files that only the owner can read."""
    for path in made.iterdir():
        set_default_mode(str(path))
    if place.exists():
        shutil.rmtree(place)
    made.rename(place)


def _make_program(
    trained: Trained, outputs: Sequence[str], kind: Inputs, dtype: torch.dtype | None, *, is_program: bool
) -> Program:
    """Return the program to export. `outputs`: names of its outputs; empty: all. `is_program`: the format stores the
    computation, not only tensors.

    If the format stores only tensors and `outputs` is empty, the program has all tensors of the model. For files of
    adapters it then also has `base`, the published model with which training began, and `learned`, the names of the
    parameters that were trained or loaded together with adapters.
    """
    if is_program or outputs:
        return make_program(trained, outputs, kind=kind, dtype=dtype)
    program = make_program(trained, tuple(trained.plan.graph.outputs), kind=kind, dtype=dtype)
    learned = frozenset(item.name for item in trained.plan.parameters if not item.frozen and item.tie is None)
    learned |= {
        name
        for each in trained.plan.weights
        if each.tensors is not None and each.tensors.alone
        for name in each.tensors.entries
        if not is_added(name)
    }
    network = trained.module().to(program.dtype)
    return replace(program, network=network, learned=learned, base=find_published_base(trained))


def _place(trained: Trained, to: str, folder: str | os.PathLike[str] | None, mark: str = MARK) -> Path:
    """Return the folder for an export in the format `to`: `folder` or, if it is None, `export-FORMAT` in the run's
    folder. Raises UsageError if this folder exists and is not empty, unless it has the file `mark`, which marks an
    earlier export."""
    if folder is None and trained.run_dir is None:
        raise UsageError("there is no folder of a run to write to; help: -o FOLDER")
    place = Path(folder) if folder is not None else Path(str(trained.run_dir)) / f"export-{to}"
    if place.is_dir() and (any(place.iterdir()) and not (place / mark).exists()):
        raise UsageError(f"{place} is a folder with other files in it; help: -o a new folder")
    if place.exists() and not place.is_dir():
        raise UsageError(f"{place} is a file; help: -o a folder")
    return place


def _write_docs(trained: Trained, program: Program, to: str, folder: Path) -> None:
    found = about(trained, program, to, FORMATS[to].file)
    is_table = trained.plan.data.window is None and all(
        entry.spec.tensor.num_elements == max(1, len(entry.spec.columns)) for entry in program.inputs
    )
    is_whole = len(program.network.state_dict()) == _num_tensors(trained)
    auto = peft_base(program) if to == "peft" else None
    code = loading_code(to, program.precision, is_table=is_table, is_whole=is_whole, auto=auto)
    (folder / MARK).write_text(json.dumps(found, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    (folder / "load.py").write_text(code, encoding="utf-8")
    (folder / "README.md").write_text(readme(found, code), encoding="utf-8")
    # adapters need the base as the run stored it; other files have dequantized tensors
    plan = trained.base_plan if to == "peft" else drop_quantization(trained.base_plan)
    (folder / PLAN).write_text(to_masked_json(plan), encoding="utf-8")
    if FORMATS[to].is_program:
        _write_sample(program, folder / "sample.npz")


def _num_tensors(trained: Trained) -> int:
    plan = trained.plan
    return len(build(plan.graph, plan.plugins, device="meta").state_dict())


def _write_sample(program: Program, path: Path) -> None:
    """Write made-up inputs and the program's outputs for them to a file: a few rows, or one if a row is large."""
    row_bytes = sum(np.prod(entry.shape, dtype=np.int64) * 8 for entry in program.inputs)
    rows = program.rows(_SAMPLE_ROWS if row_bytes * _SAMPLE_ROWS < _SAMPLE_BYTES else 1)
    arrays = {f"input/{name}": _array(tensor) for name, tensor in rows.items()}
    arrays |= {f"output/{name}": _array(tensor) for name, tensor in program.answers(rows).items()}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Return the tensor as a numpy array; bfloat16 becomes float32, because numpy has no bfloat16."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
