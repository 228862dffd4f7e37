"""Computation of one rank in an optimizer step: the model, the loss, gradients, the update."""
