"""Memory of a step: counted while a step runs, and predicted by running the same step on tensors without memory."""
