"""AdamW of the package schedulefree. Its number of steps and its other counters are in the state of the parameters, so
that checkpoints have them."""

from __future__ import annotations

from typing import Any

from schedulefree import AdamWScheduleFree

_NUMBERS = ("k", "weight_sum", "lr_max")


class ScheduleFreeAdamw(AdamWScheduleFree):  # type: ignore[misc]
    """Optimizer of the package schedulefree, adapted to checkpoints. The library keeps the number of steps, the weight
    of the average and the largest learning rate (_NUMBERS) only in its parameter groups. This class also keeps them in
    the state of each parameter, which checkpoints contain."""

    def step(self, closure: Any = None) -> Any:
        """Update the parameters by one step and return the result of `closure`. Then copy the library's counters
        (_NUMBERS) from the parameter groups into the states of the parameters, so that checkpoints contain them."""
        loss = super().step(closure)
        for group in self.param_groups:
            numbers = {name: group[name] for name in _NUMBERS}
            for parameter in group["params"]:
                if parameter in self.state:
                    self.state[parameter].update(numbers)
        return loss

    def train(self) -> None:
        """Write the training weights, not their average, into the parameters. First copy the counters (_NUMBERS) from
        the states of the parameters to the parameter groups, because the states may come from a checkpoint."""
        for group in self.param_groups:
            states = (self.state[parameter] for parameter in group["params"] if parameter in self.state)
            known = next((state for state in states if "k" in state), None)
            if known is not None:
                group.update({name: known[name] for name in _NUMBERS})
        super().train()
