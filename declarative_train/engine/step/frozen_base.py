"""Frozen weights of a model with adapters. Checkpoints do not contain them, but refer to the pretrained files.

A reference is a dict in the manifest's list `base`:

    weights    the entry of `model.weights`, which says how tensors of the files become parameters
    names      a dict from each parameter to its further names, if it is tied
    dtype      dtype of the parameters
    files      size and SHA-256 of each file; above `WHOLE_BYTES`, of its header and a piece of each tensor
    from_here  path of the files relative to the checkpoint, so that both can be moved together
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from declarative_train.components.adapters.adapted import is_added
from declarative_train.core.untrusted import parse_json
from declarative_train.engine.failures import CheckpointFailure, RunFailure
from declarative_train.engine.step.tensor_files import Tensors, add_rows, join_rows, open_tensors, rename_tensors
from declarative_train.files.open_files import format_path, local_path
from declarative_train.files.weight_files import INDEX, files_of_index
from declarative_train.graph.merge import adapters_of
from declarative_train.plan.plan import PartPlan, TensorMapPlan, WeightsPlan
from declarative_train.plan.renames import resolve_joins
from declarative_train.plan.tensor_maps import is_selected, parts_in, shape_of

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan

Record = dict[str, Any]
WHOLE_BYTES = 64 << 20
PIECE_BYTES = 4 << 10


def find_base_files(plan: Plan) -> list[tuple[WeightsPlan, dict[str, list[str]]]]:
    """Return the `.safetensors` files with the frozen parameters that checkpoints leave out, as pairs (entry, names).
    Return [] if checkpoints contain all parameters.

    `entry`: the entry of `model.weights` that names the file. `names`: dict from each frozen parameter in the file to
    the parameters that are tied to it."""
    if plan.checkpoint is None or plan.checkpoint.base == "whole" or not adapters_of(plan.graph):
        return []
    fills: dict[str, int] = {}
    for at, weights in enumerate(plan.weights):
        for item in plan.parameters:
            alone = weights.tensors is not None and weights.tensors.alone
            below = (
                item.name in weights.tensors.entries if alone and weights.tensors else _is_filled(weights, item.name)
            )
            if below and not is_added(item.name):
                fills[item.name] = at
    others: dict[str, list[str]] = {}
    for item in plan.parameters:
        if item.tie is not None:
            others.setdefault(item.tie, []).append(item.name)
    found = []
    for at, weights in enumerate(plan.weights):
        if not weights.path.endswith((".safetensors", INDEX)) or (
            weights.tensors is not None and weights.tensors.alone
        ):
            continue
        names = {
            item.name: others.get(item.name, [])
            for item in plan.parameters
            if item.frozen and item.tie is None and fills.get(item.name) == at
        }
        if names:
            found.append((weights, names))
    return found


def _is_filled(weights: WeightsPlan, name: str) -> bool:
    prefix = f"{weights.node}." if weights.node else ""
    is_below = name.startswith(prefix) and name not in weights.drawn
    return is_below and not is_selected(weights.exclude, name.removeprefix(prefix))


def record_base(plan: Plan) -> list[Record]:
    """Return a checkpoint's references to the files with frozen weights. Raises RunFailure if a file is missing."""
    dtype = "float64" if plan.training.precision == "fp64" else "float32"
    return [
        {"weights": asdict(weights), "names": names, "dtype": dtype, "files": _hash_files(weights.path)}
        for weights, names in find_base_files(plan)
    ]


def names_in(records: list[Record]) -> set[str]:
    return {name for record in records for name in record["names"]}


def add_relative_path(record: Record, checkpoint: str) -> Record:
    """Return a copy of `record`, a reference to weights files, with an entry `from_here`: the path of these files
    relative to the folder `checkpoint`. If the files or the checkpoint are at a URL, return `record` itself."""
    path, folder = local_path(record["weights"]["path"]), local_path(checkpoint)
    if path is None or folder is None:
        return record
    return record | {"from_here": os.path.relpath(path, folder)}


def locate_files(record: Record, checkpoint: str) -> Record:
    """Return `record` with the path at which its weights files are now: the recorded path or, if the unchanged files
    are not there, the recorded path relative to `checkpoint`, the folder of the checkpoint. Raises CheckpointFailure if
    files are missing or have changed."""
    weights = record["weights"]
    places = [str(weights["path"])]
    folder = local_path(checkpoint)
    if folder is not None and "from_here" in record:
        places.append(os.path.normpath(os.path.join(folder, record["from_here"])))
    places, changed = list(dict.fromkeys(places)), None
    for place in places:
        try:
            found = _hash_files(place)
        except RunFailure:
            continue
        other = next((name for name, each in record["files"].items() if found.get(name) != each), None)
        if other is None:
            return record | {"weights": weights | {"path": place}}
        changed = changed or f"{other} at {format_path(place)}"
    if changed is not None:
        message = f"the base of the adapters has changed: {changed} is not the file that the run started with"
        raise CheckpointFailure(f"{message}; help: restore that file, or a link to it")
    message = (
        f"the checkpoint has only the adapters, and their base is not at {' nor at '.join(map(format_path, places))}"
    )
    raise CheckpointFailure(f"{message}; help: restore it there, or make a link to its new place")


def open_base(record: Record, checkpoint: str) -> Tensors:
    """Return the frozen parameters to which a checkpoint refers. Their values are read later, when they are used.
    `record`: the reference. `checkpoint`: folder of the checkpoint. Raises CheckpointFailure if the files are missing
    or have changed."""
    weights = _weights(locate_files(record, checkpoint)["weights"])
    source = open_tensors(weights.path)
    if weights.tensors is not None:
        source = rename_tensors(source, weights.tensors, weights.rename)
    prefix = f"{weights.node}." if weights.node else ""
    parts = {}
    made = {} if weights.tensors is not None else resolve_joins(source.shapes, weights.rename)
    for name, others in record["names"].items():
        for each in (name, *others):
            inner = each.removeprefix(prefix)
            if weights.tensors is not None:
                given = parts_in(weights.tensors, inner, source.shapes)
            else:
                given = made.get(inner, ())
            if given and all(part.name in source.shapes for part in given):
                parts[name] = given
                break
    shapes = {name: shape for name, given in parts.items() if (shape := shape_of(given, source.shapes)) is not None}
    dtype = getattr(torch, record["dtype"])

    def read(name: str, first: int | None, last: int | None, dim: int) -> torch.Tensor:
        assert dim == 0  # only tensors of a file are read by columns
        return join_rows(source, parts[name], first, last).to(dtype)

    grown = weights.tensors.grown if weights.tensors is not None else {}
    return add_rows(Tensors(shapes, read), {f"{prefix}{name}": rows for name, rows in grown.items()})


def _weights(data: Mapping[str, Any]) -> WeightsPlan:
    tensors = data["tensors"]
    if tensors is not None:
        entries = {name: [PartPlan(**part) for part in parts] for name, parts in tensors["entries"].items()}
        tensors = replace(TensorMapPlan(**tensors), entries=entries)
    return WeightsPlan(data["node"], data["path"], data["rename"], tensors, data["exclude"], data.get("drawn", []))


def _hash_files(path: str) -> dict[str, dict[str, Any]]:
    """Return {file name: its size and checksum} for the weights file at `path` and, if it is an index, for all files
    that it lists. Raises RunFailure."""
    from fsspec.core import open as open_file

    paths = {path}
    try:
        if path.endswith(INDEX):
            with open_file(path, "rb") as stream:
                paths |= set(files_of_index(path, parse_json(stream.read())).values())
        return {each.rpartition("/")[2]: _identity(each) for each in sorted(paths)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # the file may have been replaced
        raise RunFailure(f"model.weights: cannot read {format_path(path)}: {error}") from None


def _identity(path: str) -> dict[str, Any]:
    from fsspec.core import open as open_file

    digest = hashlib.sha256()
    with open_file(path, "rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(0)
        if size <= WHOLE_BYTES:
            while block := stream.read(1 << 20):
                digest.update(block)
        else:
            digest.update(head := stream.read(8))
            digest.update(header := stream.read(min(int.from_bytes(head, "little"), size)))
            begin = 8 + len(header)
            for name, about in parse_json(header).items():
                if name != "__metadata__":
                    first, last = about["data_offsets"]
                    stream.seek(begin + max(first, (first + last - PIECE_BYTES) // 2))
                    digest.update(stream.read(min(PIECE_BYTES, last - first)))
    return {"size_bytes": size, "sha256": digest.hexdigest()}
