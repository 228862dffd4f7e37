"""Verification of a recipe: one step in the recipe's mode is compared with the same step in one process; a plan is
checked without a run."""
