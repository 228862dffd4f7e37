"""Answers before a run: whether a recipe or a published model fits on GPUs, how long it takes, what it costs."""
