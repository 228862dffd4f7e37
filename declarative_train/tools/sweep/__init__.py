"""Sweeps: many runs of a recipe, their settings, results and searches."""
