"""`parallelism: auto`: the modes that a recipe allows, and the choice between them."""
