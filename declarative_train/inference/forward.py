"""Forward of a trained model in the precision of its run, with reproducible random numbers. This module also chooses
the device and the batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from declarative_train.components.expressions.grammar import parse
from declarative_train.engine.devices import has_mps, num_gpus
from declarative_train.engine.step.precision import compute_dtype, parameters_in
from declarative_train.engine.step.randomness import Randomness, draws
from declarative_train.inference.trained import Trained, UsageError

if TYPE_CHECKING:
    from declarative_train.data.spec import FieldSpec
    from declarative_train.graph.graph import Graph

_INFERENCE = 2**33  # random stream that training and evaluations do not use
_LEAST_ROWS = 256
_MOST_ELEMENTS = 1 << 22  # in the fields of a batch whose size was not given


class Forward:
    """Forward of a trained model from fields to selected outputs. The random numbers of nodes such as `randn_like` are
    seeded by the index of the batch's first row in the input, so that repeated calls draw the same numbers."""

    def __init__(self, trained: Trained, outputs: Sequence[str], device: torch.device) -> None:
        plan = trained.plan
        self.network = trained.network(outputs, device, keep_quantized=True)
        self.device = device
        self.drawing = find_random_nodes(self.network.graph)
        self._specs: dict[str, FieldSpec] = {name: trained.fields[name] for name in self.network.inputs}
        self._widens = plan.training.precision == "fp64"
        self._compute_dtype = compute_dtype(plan.training)
        self._in_compute_dtype = parameters_in(self._compute_dtype, [self.network.module], sharded=False)
        self._randomness = Randomness(
            plan.seed, (0, _INFERENCE), device, needed=draws(self.network.graph, plan.plugins)
        )

    def __call__(self, values: Mapping[str, np.ndarray], start: int) -> dict[str, torch.Tensor]:
        """Return the outputs (N, ...) by name. `values`: fields (N, ...) by name. `start`: index of the batch's first
        row in the whole input, which seeds the random numbers."""
        tensors = [self._tensor(name, values[name]) for name in self.network.inputs]
        self._randomness.begin(start, 0)
        with torch.inference_mode(), self._run_precision():
            found = self.network.module(*tensors)
        return dict(zip(self.network.outputs, found, strict=True))

    def _tensor(self, name: str, values: np.ndarray) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, self._specs[name].tensor.dtype)
        if self._widens and dtype.is_floating_point:
            dtype = torch.float64
        array = np.ascontiguousarray(values)
        return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device, dtype)

    @contextmanager
    def _run_precision(self) -> Iterator[None]:
        """Compute in the precision of the run within the `with` block."""
        before = torch.get_default_dtype()
        if self._widens:
            torch.set_default_dtype(torch.float64)
        try:
            if self._compute_dtype is None:
                yield
            else:
                with self._in_compute_dtype, torch.autocast(self.device.type, dtype=self._compute_dtype):
                    yield
        finally:
            torch.set_default_dtype(before)


def find_random_nodes(graph: Graph, prefix: str = "") -> list[str]:
    """Return the paths of the graph nodes that draw random numbers even in evaluation. These are expressions such as
    `randn_like(mu)`. `prefix`: path of the graph with a dot at the end, or ""."""
    found = []
    for node in graph.nodes:
        if node.graph is not None:
            found += find_random_nodes(node.graph, f"{prefix}{node.name}.")
        elif node.expression is not None and parse(node.expression).is_random:
            found.append(f"{prefix}{node.name}")
    return found


def device_for(trained: Trained, wanted: str, rank: int = 0) -> torch.device:
    """Return the torch device for a user's choice `wanted`, such as `cuda:1`. `auto` is a GPU if this machine has one
    and the run could use one, otherwise the CPU. `rank`: index of this process; different processes get different GPUs.
    Raises UsageError for a device that does not exist."""
    if wanted == "auto":
        if trained.plan.layout.device == "mps" and has_mps():
            return torch.device("mps", 0)
        gpus = 0 if trained.plan.layout.device in ("cpu", "mps") else num_gpus()
        return torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"--device {wanted} cannot be used here: {reason}; help: cpu, cuda, cuda:1 or mps") from None
    if device.type == "mps":
        wide = [field.name for field in trained.fields.values() if field.tensor.dtype == "float64"]
        if trained.plan.training.precision == "fp64" or wide:
            what = f"the field `{wide[0]}`" if wide else "the run"
            raise UsageError(f"--device mps has no float64, which {what} uses; help: --device cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", rank % max(num_gpus(), 1))
    return device


def batch_rows(trained: Trained, fields: Sequence[str], wanted: int | None) -> int:
    """Return the number of rows per batch: `wanted` or, if it is None, the batch size of the run's evaluations (without
    evaluations, the microbatch size). If `wanted` is None and rows are small, this number is raised to `_LEAST_ROWS`,
    as long as a batch has at most `_MOST_ELEMENTS` values. `fields`: names of the fields that are read."""
    if wanted is not None:
        return wanted
    evaluation = trained.plan.evaluation
    known = trained.plan.batch.microbatch_size if evaluation is None else evaluation.batch_size
    row = max(1, sum(trained.fields[name].tensor.num_elements for name in fields))
    return max(known, min(_LEAST_ROWS, _MOST_ELEMENTS // row), 1)
