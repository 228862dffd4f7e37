"""Formats of an export. A format writes a file and loads it again as users do, to compare it with the trained model.

safetensors   the tensors, with the recipe's names (`safetensors.torch.load_file`)
state-dict    the same tensors for `torch.load(weights_only=True)`
peft          only the adapters, with PEFT's names and config (`peft.PeftModel.from_pretrained`)
torch-export  the computation with its tensors (`torch.export.load`)
onnx          the same computation for onnxruntime and other tools

The last two accept any number of rows. All other sizes are those of training.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from declarative_train.core.machine import NEEDED_TORCH, install, is_older_torch
from declarative_train.packs.export import peft
from declarative_train.packs.export.export_errors import ExportFailure, blame_node
from declarative_train.packs.export.program import Program

Rows = Mapping[str, torch.Tensor]
_EXAMPLE_ROWS = 5  # a number that is rarely the size of another dimension
_CHECKED_ROWS = 7
_ONE_FILE_BYTES = 1 << 30  # larger tensors go to a separate file: protobuf's limit is 2 GiB
_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """Format of an export.

    file        name of the file
    is_program  the file contains the computation, not only tensors
    write       writes the file
    read_back   loads the file; returns the outputs for some rows, or the tensors
    needs       required packages
    extra       the extra of dtrain that installs them
    merges      adapters are merged into the weights before writing
    tensors     returns the tensors to write"""

    file: str
    is_program: bool
    write: Callable[[Program, Path], None]
    read_back: Callable[[Program, Path, Rows], dict[str, torch.Tensor]]
    needs: tuple[str, ...] = ()
    extra: str = ""
    merges: bool = True
    tensors: Callable[[Program], dict[str, torch.Tensor]] = lambda program: _tensors(program)

    def require(self, name: str) -> None:
        """Raise ExportFailure if a package that the format needs is missing. `name`: the format's name, for the
        message."""
        for package in self.needs:
            try:
                import_module(package)
            except ImportError:
                raise ExportFailure(f"--to {name} needs the package {package}; help: {install(self.extra)}") from None


def check(format: ExportFormat, program: Program, path: Path) -> float:
    """Load the written file, and compare its outputs for made-up rows with those of the model. If the format stores
    only tensors, compare the tensors. Return the largest relative difference. Raises ExportFailure if it is larger than
    a rounding error."""
    rows = program.rows(_CHECKED_ROWS)
    found = format.read_back(program, path, rows)
    wanted = program.answers(rows) if format.is_program else format.tensors(program)
    largest = 0.0
    for name, tensor in wanted.items():
        if name in program.drawn:
            continue
        if name not in found or found[name].shape != tensor.shape:
            raise ExportFailure(f"{path.name} lacks {name}, or has it in another shape, when it is loaded back")
        if not torch.isfinite(tensor.double()).all():
            continue  # made-up rows may be outside the domain of the model
        apart = (found[name].double() - tensor.double()).abs().max().item() if tensor.numel() else 0.0
        scale = max(1.0, tensor.double().abs().max().item() if tensor.numel() else 0.0)
        largest = max(largest, apart / scale)
    if largest > (_TOLERANCE[program.dtype] if format.is_program else 0.0):
        raise ExportFailure(
            f"{path.name} differs by {largest:.2g} from the model when it is loaded back; help: a layer may compute in "
            "Python what an export cannot trace (`.item()`, numpy, its own random numbers): write it with torch only"
        )
    return largest


def _tensors(program: Program) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().contiguous() for name, tensor in program.network.state_dict().items()}


def _write_safetensors(program: Program, path: Path) -> None:
    """Write all tensors to a safetensors file. A tied parameter is written under each of its names."""
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in _tensors(program).items()}, path, metadata={"format": "pt"})


def _read_safetensors(program: Program, path: Path, rows: Rows) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(path)
    return found


def _write_state_dict(program: Program, path: Path) -> None:
    torch.save(_tensors(program), path)


def _read_state_dict(program: Program, path: Path, rows: Rows) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return found


def _export_module(module: nn.Module, inputs: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """Export a module with torch.export. The first dimension of its inputs, the batch, may have any size."""
    rows = torch.export.Dim("batch", min=1)
    shapes = tuple(
        {0: rows} if isinstance(each, torch.Tensor) and each.dim() and each.shape[0] == _EXAMPLE_ROWS else None
        for each in inputs
    )
    with torch.no_grad(), _quietly():
        return torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)


def _export_part(part: nn.Module, inputs: tuple[Any, ...]) -> torch.export.ExportedProgram:
    """Export one module of a model with torch.export. `inputs`: any number of tensors, and None for optional ones."""
    root, lines = nn.Module(), fx.Graph()
    root.add_module("part", part)
    taken = [each is not None for each in inputs]
    arguments = [lines.placeholder(f"input_{at}") if is_there else None for at, is_there in enumerate(taken)]
    lines.output(lines.call_module("part", tuple(arguments)))
    return _export_module(fx.GraphModule(root, lines), tuple(each for each in inputs if each is not None))


def _program(program: Program) -> torch.export.ExportedProgram:
    if is_older_torch() and any(isinstance(part, nn.LSTM) for part in program.module.modules()):
        raise ExportFailure(
            f"torch {torch.__version__} exports the states of an LSTM in a wrong shape; help: "
            f"pip install 'torch>={NEEDED_TORCH}'"
        )
    inputs = program.arguments(program.rows(_EXAMPLE_ROWS))
    with blame_node(program.module, inputs, "exported by torch.export for batches of any size", _export_part):
        return _export_module(program.module, inputs)


def _write_program(program: Program, path: Path) -> None:
    torch.export.save(_program(program), path)


def _read_program(program: Program, path: Path, rows: Rows) -> dict[str, torch.Tensor]:
    with _quietly():
        loaded = torch.export.load(path).module()
    with torch.no_grad():
        found = loaded(*program.arguments(rows))
    return {answer.name: tensor for answer, tensor in zip(program.outputs, found, strict=True)}


def _write_onnx(program: Program, path: Path) -> None:
    exported = _program(program)
    names = [entry.name for entry in program.inputs], [answer.name for answer in program.outputs]
    size = sum(tensor.numel() * tensor.element_size() for tensor in program.network.state_dict().values())
    inputs = program.arguments(program.rows(_EXAMPLE_ROWS))
    import onnx

    with blame_node(program.module, inputs, "written as ONNX", lambda part, given: _onnx(_export_part(part, given))):
        _onnx(exported, path, names, external_data=size > _ONE_FILE_BYTES)
        onnx.checker.check_model(str(path), full_check=True)


def _onnx(
    exported: torch.export.ExportedProgram,
    path: Path | None = None,
    names: tuple[list[str], list[str]] | None = None,
    external_data: bool = False,
) -> None:
    inputs, outputs = names or (None, None)
    with _quietly():
        torch.onnx.export(
            exported,
            f=None if path is None else str(path),
            input_names=inputs,
            output_names=outputs,
            dynamo=True,
            external_data=external_data,
            verbose=False,
        )


def _read_onnx(program: Program, path: Path, rows: Rows) -> dict[str, torch.Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        found = session.run(None, {name: tensor.numpy() for name, tensor in rows.items()})
    except Exception as error:  # onnxruntime's exceptions have no public base class
        reason = str(error).strip().splitlines()[0][:300]
        raise ExportFailure(f"onnxruntime cannot run {path.name}: {reason}") from error
    return {answer.name: torch.from_numpy(array) for answer, array in zip(program.outputs, found, strict=True)}


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress messages and warnings of torch's exporters within the `with` block."""
    logger = logging.getLogger("torch.onnx")
    levels = {each: each.level for each in (logger, logging.getLogger("onnxscript"), logging.getLogger("onnx_ir"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in levels:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in levels.items():
                each.setLevel(level)


FORMATS: Mapping[str, ExportFormat] = {
    "onnx": ExportFormat("model.onnx", True, _write_onnx, _read_onnx, ("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "peft": ExportFormat(
        peft.FILE, False, peft.write, _read_safetensors, ("safetensors",), "safetensors", False, peft.tensors
    ),
    "safetensors": ExportFormat(
        "model.safetensors", False, _write_safetensors, _read_safetensors, ("safetensors",), "safetensors"
    ),
    "state-dict": ExportFormat("model.pt", False, _write_state_dict, _read_state_dict),
    "torch-export": ExportFormat("model.pt2", True, _write_program, _read_program),
}
