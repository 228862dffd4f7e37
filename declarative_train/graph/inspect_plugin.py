"""Inspection of a plugin's layer: the layer is run on made-up samples, to find whether it draws random numbers, mixes
samples or changes its inputs.

dtrain's own layers declare these properties, and tests check them. A plugin can declare only that it mixes samples. All
properties are unknown if a layer is too large for the CPU or fails on the made-up samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import torch
from torch import nn

from declarative_train.components.layers.modules.batch_norm import BATCH_NORMS
from declarative_train.components.plugin_layer import read_random_states, seed_generators
from declarative_train.core.tensor_spec import TensorSpec

ROWS, FEWER = 6, 4
_TOLERANCE = 1e-4  # relative to the largest value: with another number of rows, sums have another order

Inputs = Sequence[TensorSpec | None]
When = Literal["training", "evaluation"]
WHEN: tuple[When, ...] = ("training", "evaluation")


@dataclass(frozen=True, slots=True)
class Habits:
    """Behaviour of a layer that its signature does not show.

    draws          it draws random numbers in training; None: unknown
    mixes          phases (training, evaluation) in which a sample's result depends on others of the batch
    batch_norms    names of torch's batch normalisations in the layer
    changed        positions of the inputs that the layer writes into
    unregistered   tensors in the layer that are neither parameters nor buffers"""

    draws: bool | None
    mixes: tuple[When, ...]
    batch_norms: tuple[str, ...]
    changed: tuple[int, ...]
    unregistered: tuple[str, ...]


MIXES = Habits(draws=False, mixes=("training",), batch_norms=(), changed=(), unregistered=())
"""Habits of a layer that mixes samples in training and does nothing else."""


def examine(module: nn.Module, inputs: Inputs, device: torch.device, *, mixes_in_training: bool = False) -> Habits:
    """Run `module` on `device`, and return its behaviour. The module cannot be used afterwards. Whether it draws random
    numbers or mixes samples is found out only on the CPU.

    `inputs`: specs in the order of the arguments of `forward`; None for an input that is not connected.
    `mixes_in_training`: the plugin declares that the layer mixes samples in training."""
    unregistered = tuple(_find_unregistered(module))  # before a forward, which may store more tensors in the module
    draws: bool | None = None
    mixes: list[When] = []
    module.eval()
    if device.type == "cpu":
        draws = _or_none(lambda: _Trial(module, inputs, "training").draws())
        for when in WHEN:
            trial = _Trial(module, inputs, when)
            if _or_none(trial.mixes):
                mixes.append(when)
    if mixes_in_training and "training" not in mixes:
        mixes.insert(0, "training")
    changed = _or_none(lambda: _find_changed(module, inputs, device)) or ()
    norms = tuple(name for name, part in module.named_modules() if isinstance(part, BATCH_NORMS))
    return Habits(draws, tuple(mixes), norms, changed, unregistered)


def _or_none(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception:  # the user's code may fail on made-up numbers; then nothing is known
        return None


class _Trial:
    """Trial of a layer, which is run on generated samples. `when`: in training or in evaluation mode."""

    def __init__(self, module: nn.Module, inputs: Inputs, when: When) -> None:
        self._module, self._inputs, self._is_training = module, inputs, when == "training"
        self._buffers = {name: item.clone() for name, item in module.named_buffers()}
        self._base = _samples(inputs, seed=1)

    def run(self, samples: Sequence[torch.Tensor | None]) -> tuple[torch.Tensor, ...]:
        """Return the outputs for `samples` as float64; complex outputs are left out. Random generators and buffers
        (such as running statistics) are reset before each call."""
        for name, item in self._module.named_buffers():
            item.copy_(self._buffers[name])
        self._module.train(self._is_training)
        try:
            with seed_generators(1), torch.no_grad():
                found = self._module(*(None if item is None else item.clone() for item in samples))
        finally:
            self._module.eval()
        outputs = found if isinstance(found, tuple) else (found,)
        return tuple(item.double() for item in outputs if not item.is_complex())

    def draws(self) -> bool:
        with seed_generators(1):
            before = read_random_states()
            self._module.train(self._is_training)
            try:
                with torch.no_grad():
                    self._module(*(None if item is None else item.clone() for item in self._base))
            finally:
                self._module.eval()
            after = read_random_states()
        return before != after

    def mixes(self) -> bool:
        """Return whether the result for a sample changes with the rest of the batch: with other neighbours, fewer
        samples, or another order."""
        whole = self.run(self._base)
        other = _samples(self._inputs, seed=2)
        for row in (0, ROWS - 1):
            neighbours = [_with_row(item, of, row) for item, of in zip(other, self._base, strict=True)]
            if _differ([item[row] for item in whole], [item[row] for item in self.run(neighbours)]):
                return True
        if self.draws():  # other batches draw other numbers
            return False
        fewer = self.run([None if item is None else item[:FEWER] for item in self._base])
        turned = self.run([None if item is None else item.flip(0) for item in self._base])
        return _differ([item[:FEWER] for item in whole], fewer) or _differ([item.flip(0) for item in whole], turned)


def _samples(inputs: Inputs, seed: int) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    return [None if spec is None else _make_input(spec, generator) for spec in inputs]


def _make_input(spec: TensorSpec, generator: torch.Generator) -> torch.Tensor:
    """Return a made-up input for ROWS samples: random floats from 0 to 1, random booleans, or random integers in the
    range of `spec` (zeros if it has no range)."""
    shape, dtype = (ROWS, *spec.shape), getattr(torch, spec.dtype)
    if spec.is_floating:
        return torch.rand(shape, generator=generator).to(dtype)
    if spec.dtype == "bool":
        return torch.randint(2, shape, generator=generator).bool()
    return torch.randint(spec.num_values or 1, shape, generator=generator).to(dtype)


def _with_row(tensor: torch.Tensor | None, other: torch.Tensor | None, row: int) -> torch.Tensor | None:
    if tensor is None or other is None:
        return None
    made = tensor.clone()
    made[row] = other[row]
    return made


def _differ(wanted: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> bool:
    for one, other in zip(wanted, given, strict=True):
        size = one.abs().max().item() if one.numel() else 0.0
        if not torch.allclose(one, other, rtol=0.0, atol=_TOLERANCE * size, equal_nan=True):
            return True
    return False


def _find_changed(module: nn.Module, inputs: Inputs, device: torch.device) -> tuple[int, ...]:
    """Return the positions of the floating-point inputs that `forward` writes into. To find them, each input requires a
    gradient in turn: autograd then raises an error for a write."""
    found: set[int] = set()
    floating = [at for at, spec in enumerate(inputs) if spec is not None and spec.is_floating]
    for at, is_training in product(floating, (False, True)):
        samples = [None if spec is None else _zeros(spec, device) for spec in inputs]
        samples[at].requires_grad_()  # type: ignore[union-attr]
        module.train(is_training)
        try:
            with seed_generators(1), torch.enable_grad():
                module(*samples)
        except RuntimeError as error:
            if "in-place operation" not in str(error):
                raise
            found.add(at)
        finally:
            module.eval()
    return tuple(sorted(found))


def _zeros(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    return torch.zeros((ROWS, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)


def _find_unregistered(module: nn.Module) -> Iterator[str]:
    known = {id(item) for item in (*module.parameters(), *module.buffers())}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and id(value) not in known:
                yield f"{path}.{name}" if path else name
