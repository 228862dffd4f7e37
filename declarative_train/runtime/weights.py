"""Start values from files: `model.weights`, for the parameters below a node, names relative to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from declarative_train.diagnostics.suggest import nearest
from declarative_train.runtime.checkpoint_store import MANIFEST, CheckpointStore, Entry, read_entry
from declarative_train.runtime.failures import RunFailure
from declarative_train.runtime.run_dir import CHECKPOINTS

if TYPE_CHECKING:
    from declarative_train.plan.plan import WeightsPlan

SHOWN = 3


def load_weights(model: nn.Module, plans: Iterable[WeightsPlan], *, whole: bool = True) -> None:
    """In place, in the plan's order. Raises RunFailure: one message on all names that do not fit.

    `whole` is False for a pipeline stage: names of the file that it does not hold are another stage's.
    """
    for plan in plans:
        found = renamed(read_weights(plan.path), plan.rename)
        if not whole:
            held, prefix = model.state_dict(), f"{plan.node}." if plan.node else ""
            found = {name: tensor for name, tensor in found.items() if f"{prefix}{name}" in held}
        apply_weights(model, plan, found)


def apply_weights(model: nn.Module, plan: WeightsPlan, found: Mapping[str, torch.Tensor]) -> None:
    prefix = f"{plan.node}." if plan.node else ""
    persistent = model.state_dict(keep_vars=True)
    below = {name.removeprefix(prefix): item for name, item in persistent.items() if name.startswith(prefix)}
    first_of = {id(item): name for name, item in reversed(below.items())}
    # a tied parameter may stand in the file under either name, or under both
    present = {first_of[id(below[name])] for name in found if name in below}
    parameters = {name for name, item in below.items() if isinstance(item, nn.Parameter)}
    missing = [name for name in below if name in parameters and first_of[id(below[name])] not in present]
    unexpected = [name for name in found if name not in below]
    wrong = [
        f"{name} is {tuple(found[name].shape)} in the file, {tuple(below[name].shape)} in the model"
        for name in found
        if name in below and found[name].shape != below[name].shape
    ]
    if missing or unexpected or wrong:
        raise RunFailure(_misfit(plan, missing, unexpected, wrong, below))
    with torch.no_grad():
        for name, tensor in found.items():
            put(below[name], tensor)


def put(parameter: torch.Tensor, tensor: torch.Tensor) -> None:
    """The whole value, or of a sharded parameter this rank's part of it."""
    placements = getattr(parameter, "placements", None)
    if placements is None:
        parameter.copy_(tensor)
        return
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    moved = tensor.to(parameter.device, parameter.dtype)
    part = distribute_tensor(moved, parameter.device_mesh, placements, src_data_rank=None)
    parameter.to_local().copy_(part.to_local())


def renamed(found: Mapping[str, torch.Tensor], rename: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The longest prefix that fits is replaced."""
    prefixes = sorted(rename, key=len, reverse=True)

    def new(name: str) -> str:
        prefix = next((item for item in prefixes if name.startswith(item)), None)
        return name if prefix is None else rename[prefix] + name.removeprefix(prefix)

    return {new(name): tensor for name, tensor in found.items()}


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Tensors by name: a `.safetensors` or `.pt` file, a run's folder (its best checkpoint, else its last), a
    checkpoint's folder, or the folder of a recipe's runs (the newest). No code in it is run. Raises RunFailure."""
    if path.endswith(".safetensors"):
        return _read_safetensors(path)
    if path.endswith((".pt", ".pth", ".bin")):
        return _read_torch(path)
    return _read_checkpoint(path, find_checkpoint(path))


def find_checkpoint(path: str) -> Entry:
    path = path.rstrip("/")
    if CheckpointStore(path).has(f"{path}/{MANIFEST}"):
        return read_entry(path)
    runs = [path]
    if Path(path).is_dir():
        runs += sorted((str(run) for run in Path(path).iterdir() if run.is_dir()), reverse=True)
    for run in runs:
        whole, _ = CheckpointStore(f"{run}/{CHECKPOINTS}").entries()
        if whole:
            best = whole[0].manifest["state"].get("best_step")
            return next((entry for entry in whole if entry.step == best), whole[0])
    raise RunFailure(
        f"model.weights: {path} holds no weights; help: give a .safetensors or .pt file, or a run's folder"
    )


def _read_safetensors(path: str) -> dict[str, torch.Tensor]:
    try:
        from safetensors.torch import load
    except ImportError:
        raise RunFailure(
            f"model.weights: {path} needs the package safetensors; help: pip install 'declarative_train[safetensors]'"
        ) from None
    try:
        tensors: dict[str, torch.Tensor] = load(_bytes(path))
    except OSError:
        raise
    except Exception as error:  # SafetensorError has no public base class
        raise RunFailure(f"model.weights: cannot read {path}: {error}") from None
    return tensors


def _read_torch(path: str) -> dict[str, torch.Tensor]:
    import io
    import pickle

    try:
        found: Any = torch.load(io.BytesIO(_bytes(path)), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise RunFailure(f"model.weights: cannot read {path} without running code from it: {reason}") from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(item, torch.Tensor) for item in found.values()):
        raise RunFailure(f"model.weights: {path} does not hold a mapping of names to tensors")
    return dict(found)


def _read_checkpoint(path: str, entry: Entry) -> dict[str, torch.Tensor]:
    from declarative_train.runtime.checkpoint_format import entries, load_tensors

    names = {name: item for name, item in entries(entry.path).items() if name.startswith("model/")}
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in names.items()}
    load_tensors(entry.path, tensors, alone=True)
    return {name.removeprefix("model/"): tensor for name, tensor in tensors.items()}


def _bytes(path: str) -> bytes:
    from fsspec.core import open as open_file

    try:
        with open_file(path, "rb") as stream:
            content: bytes = stream.read()
    except FileNotFoundError:
        raise RunFailure(f"model.weights: there is no file {path}") from None
    return content


def _misfit(
    plan: WeightsPlan, missing: list[str], unexpected: list[str], wrong: list[str], below: Mapping[str, Any]
) -> str:
    where = f" below `{plan.node}`" if plan.node else ""
    parts = []
    if missing:
        parts.append(f"{_several(missing)} of the model{where} not in the file")
    if unexpected:
        parts.append(f"{_several(unexpected)} of the file not in the model{where}")
    if wrong:
        parts.append(_several(wrong))
    message = f"model.weights: {plan.path} does not fit: {'; '.join(parts)}"
    close = nearest(unexpected[0], below) if unexpected else None
    if unexpected and missing:
        message += f"; help: `rename` maps the file's names to the model's, as in {{{_prefix(unexpected[0])!r}: ...}}"
    elif close:
        message += f"; help: did you mean {close}?"
    return message


def _prefix(name: str) -> str:
    head, dot, _ = name.rpartition(".")
    return f"{head}{dot}"


def _several(names: list[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
