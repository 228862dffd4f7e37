"""What a step needs of memory: counted while it runs, and foretold by the same step on tensors without memory."""
