"""What one rank computes in a step: the model, the objective, gradients, the update."""
