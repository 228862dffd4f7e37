"""What stands in the folder of a run: its lock, its checkpoints, and how they are written and found."""
