"""A schedule of a plugin."""

from __future__ import annotations

from math import isfinite

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.factors import warmup_factor
from declarative_train.components.plugin_components import PluginComponent


class PluginLrSchedule(PluginComponent, LrSchedule):
    """`factor(self, step, num_steps)`, counted from the end of the warm-up, times the warm-up."""

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        """Raises ValueError for what is no factor, and whatever the code raises."""
        behind = max(0, step - num_warmup_steps), max(1, num_steps - num_warmup_steps)
        found = self.make().factor(*behind)
        if not isinstance(found, int | float) or not isfinite(found) or found < 0:
            called = f"`factor({behind[0]}, {behind[1]})` of `{self.type}`"
            raise ValueError(f"{called} is {found!r}: a factor is a number from 0 on")
        return warmup_factor(step, num_warmup_steps) * float(found)
