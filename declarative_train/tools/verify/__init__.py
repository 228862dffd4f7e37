"""Verification of a recipe: one training step with the recipe's parallelism is compared with the same step in one
process. A plan can also be checked without a run."""
