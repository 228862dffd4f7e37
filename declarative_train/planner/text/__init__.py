"""Text of a plan for users: `dtrain plan` and the summary of a run."""
