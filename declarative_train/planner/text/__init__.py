"""A plan as text, for people: `dtrain plan` and the summary of a run."""
