"""What goes wrong with the data after the recipe was compiled: the world changed, or a value nobody had looked at."""

from __future__ import annotations


class DataError(Exception):
    """One message for the user; a run that meets it fails (exit 3)."""
