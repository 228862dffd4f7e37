"""Memory of a step: counted while a step runs, or predicted by running the same step on tensors without memory."""
