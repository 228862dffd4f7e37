"""Verification of a recipe: one training step in the recipe's mode is compared with the same step in one process. A
plan can also be checked without a run."""
