"""Time limits of a run, in seconds, from environment variables."""

from __future__ import annotations

import os
from typing import Literal

from declarative_train.engine.failures import RunFailure

# defaults of the environment variables, in seconds
LIMITS_S = {
    "DTRAIN_GRACE_S": 25.0,  # from a request to stop to the end of a step
    "DTRAIN_SAVE_S": 600.0,  # for a checkpoint in progress when the grace is over
    "DTRAIN_TIMEOUT_S": 600.0,  # for collective operations
}


Limit = Literal["DTRAIN_GRACE_S", "DTRAIN_SAVE_S", "DTRAIN_TIMEOUT_S"]


def limit_s(name: Limit) -> float:
    """Return a limit in seconds. Raises RunFailure for an invalid value."""
    text = os.environ.get(name, "")
    try:
        value = float(text or LIMITS_S[name])
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise RunFailure(f"{name} is `{text}`, not a number of seconds above 0; help: {name}={LIMITS_S[name]:g}")
    return value
