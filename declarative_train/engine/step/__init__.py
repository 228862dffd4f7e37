"""Computation of one rank in a step: the model, the objective, gradients, the update."""
