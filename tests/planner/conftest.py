"""Fixtures of the tests of plans, which the planner's tests use too."""

from tests.plan.conftest import compiled as compiled
from tests.plan.conftest import planned as planned
