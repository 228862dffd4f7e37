"""Verification of a recipe: one step in its mode compared with one process, and checks of a plan without a run."""
