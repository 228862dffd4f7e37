"""The numbers of an update rule, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""A learning rate, a weight decay: 0 or more."""
Part = Annotated[float, Field(ge=0, lt=1)]
"""What is kept of a running average at each step."""
Tiny = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""What is added to a divisor."""
