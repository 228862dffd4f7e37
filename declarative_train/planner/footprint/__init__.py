"""Memory of a step: counted while it runs, and predicted by running the same step on tensors without memory."""
