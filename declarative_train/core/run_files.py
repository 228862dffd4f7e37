"""Names of the files that mark a folder as the folder of a run. Packages below `run` read them too."""

RUN = "run.json"  # the name and id of the run, and the folder of its checkpoints if that is elsewhere
EVENTS = "events.jsonl"  # the events that the run has reported
