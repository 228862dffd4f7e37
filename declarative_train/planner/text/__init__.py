"""Text of a plan for users: the output of `dtrain plan` and the summary at the start of a run."""
