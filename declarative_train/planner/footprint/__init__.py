"""Memory of a step: counted while it runs, and predicted by the same step on tensors without memory."""
