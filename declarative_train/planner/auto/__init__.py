"""`parallelism: auto`: the ways to run that a recipe leaves open, and which of them the planner takes."""
