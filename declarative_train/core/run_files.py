"""The files by which a folder is known as that of a run, for rooms that know no runs."""

RUN = "run.json"  # what it is called, what it is told apart by, and where its checkpoints are if elsewhere
EVENTS = "events.jsonl"  # what it has reported
