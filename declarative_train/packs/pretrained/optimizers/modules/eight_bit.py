"""AdamW of the package torchao, changed to accept learning rates as plain numbers and to give checkpoints plain
tensors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torchao.optim import AdamW8bit
from torchao.optim.subclass_8bit import OptimState8bit

_PARTS = ("codes", "scale")  # tensors of a state that change; the third one is constant
_SIGNED = {"exp_avg": True, "exp_avg_sq": False, "max_exp_avg_sq": False}


class EightBitAdamw(AdamW8bit):  # type: ignore[misc]
    """Optimizer `AdamW8bit` of torchao, adapted to dtrain's engine: it accepts learning rates as numbers. The update is
    compiled, except on the CPU, where compiling takes longer than most runs."""

    def step(self, closure: Any = None) -> Any:
        """Update the parameters by one step. Return the result of `closure`, as torch's optimizers do."""
        rates = [group["lr"] for group in self.param_groups]
        parameter = self.param_groups[0]["params"][0]
        is_plain = parameter.device.type == "cpu" or hasattr(parameter, "fake_mode")
        for group in self.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32)
        with torch.compiler.set_stance("force_eager") if is_plain else nullcontext():
            loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        return loss

    def pack_state(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state of a parameter as plain tensors and numbers."""
        found: dict[str, Any] = {}
        for entry, value in self.state.get(parameter, {}).items():
            if isinstance(value, OptimState8bit):
                found |= {f"{entry}.{part}": getattr(value, part) for part in _PARTS}
            else:
                found[entry] = value
        return found

    def unpack_state(self, parameter: torch.Tensor, packed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the optimizer's state of a parameter, made from `packed`, which `pack_state` returned."""
        found = {entry: value for entry, value in packed.items() if "." not in entry}
        for entry, is_signed in _SIGNED.items():
            if f"{entry}.codes" in packed:
                made = self._subclass_zeros(parameter, is_signed, self.block_size)
                for part in _PARTS:
                    getattr(made, part).copy_(packed[f"{entry}.{part}"])
                found[entry] = made
        return found
