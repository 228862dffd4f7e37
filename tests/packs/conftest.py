"""Fixtures of data sections, which tests of fields and sources need."""

from tests.data.conftest import look, spec

__all__ = ["look", "spec"]
