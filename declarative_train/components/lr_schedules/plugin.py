"""Learning-rate schedule of a plugin."""

from __future__ import annotations

from math import isfinite

from declarative_train.components.component import LrSchedule
from declarative_train.components.lr_schedules.factors import warmup_factor
from declarative_train.components.plugin_components import PluginComponent


class PluginLrSchedule(PluginComponent, LrSchedule):
    """Schedule of a plugin. Its factor is that of the user's method `factor(self, step, num_steps)`, times the factor
    of the warm-up. For this method, `step` and `num_steps` count from the end of the warm-up.
    """

    def factor(self, step: int, num_steps: int, num_warmup_steps: int) -> float:
        """Return the user's factor for the step times the factor of the warm-up. Raises ValueError if the user's
        method does not return a number of 0 or more, and any exception of that method.
        """
        behind = max(0, step - num_warmup_steps), max(1, num_steps - num_warmup_steps)
        found = self.make().factor(*behind)
        if not isinstance(found, int | float) or not isfinite(found) or found < 0:
            called = f"`factor({behind[0]}, {behind[1]})` of `{self.type}`"
            raise ValueError(f"{called} is {found!r}: a factor is a number of 0 or more")
        return warmup_factor(step, num_warmup_steps) * float(found)
