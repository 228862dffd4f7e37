"""Start values from files: `model.weights`, for the parameters below a node, names relative to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from declarative_train.plan.checks.parameters import words
from declarative_train.plan.weights import TORCH_BEGINS, misfit, renamed, same_name, unmatched
from declarative_train.runtime.failures import RunFailure
from declarative_train.runtime.storage.checkpoint_store import Entry, read_entry

if TYPE_CHECKING:
    from declarative_train.plan.plan import WeightsPlan


def load_weights(model: nn.Module, plans: Iterable[WeightsPlan], *, whole: bool = True) -> None:
    """In place, in the plan's order. Raises RunFailure: one message on all names that do not fit.

    `whole` is False for a pipeline stage: names of the file that it does not hold are another stage's.
    """
    for plan in plans:
        read = read_weights(plan.path)
        for prefix in unmatched(read, plan.rename):
            message, way_out = words(prefix, "it", list(read))
            raise RunFailure(f"model.weights: {plan.path}: {message}; help: {way_out}")
        _require_none(plan, same_name(read, plan.rename))
        found = renamed(read, plan.rename)
        if not whole:
            held, prefix = model.state_dict(), f"{plan.node}." if plan.node else ""
            found = {name: tensor for name, tensor in found.items() if f"{prefix}{name}" in held}
        apply_weights(model, plan, found)


def apply_weights(model: nn.Module, plan: WeightsPlan, found: Mapping[str, torch.Tensor]) -> None:
    prefix = f"{plan.node}." if plan.node else ""
    below = {
        name.removeprefix(prefix): item
        for name, item in model.state_dict(keep_vars=True).items()
        if name.startswith(prefix)
    }
    _require_none(plan, misfit(model, plan, {name: tuple(tensor.shape) for name, tensor in found.items()}))
    with torch.no_grad():
        for name, tensor in found.items():
            put(below[name], tensor)


def _require_none(plan: WeightsPlan, problem: tuple[str, str | None] | None) -> None:
    if problem is not None:
        message, way_out = problem
        raise RunFailure(f"model.weights: {plan.path} {message}" + (f"; help: {way_out}" if way_out else ""))


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


def read_weights(path: str) -> dict[str, torch.Tensor]:
    """Tensors by name: a `.safetensors` or `.pt` file, or a checkpoint's folder (that of a run's which
    `run_dir.settled_weights` chose). No code in it is run. Raises RunFailure."""
    if path.endswith(".safetensors"):
        return _read_safetensors(path)
    if path.endswith((".pt", ".pth", ".bin")):
        return _read_torch(path)
    return _read_checkpoint(read_entry(path))


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

    content = _bytes(path)
    if not content.startswith(TORCH_BEGINS):
        raise RunFailure(f"model.weights: {path} cannot be read: it is no file of torch")
    try:
        found: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # whose words are about arguments of torch's own
        message = f"model.weights: {path} holds more than tensors, and no code from it is run"
        raise RunFailure(f"{message}; help: save a state_dict()") from None
    except Exception as error:  # whatever torn bytes lead to
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise RunFailure(f"model.weights: {path} cannot be read: {reason[:200]}") from None
    for key in ("state_dict", "model"):
        if isinstance(found, Mapping) and isinstance(found.get(key), Mapping):
            found = found[key]
    if not isinstance(found, Mapping) or not all(isinstance(item, torch.Tensor) for item in found.values()):
        raise RunFailure(f"model.weights: {path} does not hold a mapping of names to tensors")
    return dict(found)


def _read_checkpoint(entry: Entry) -> dict[str, torch.Tensor]:
    from declarative_train.runtime.storage.checkpoint_format import entries, load_tensors

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
