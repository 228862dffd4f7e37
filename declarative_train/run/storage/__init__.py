"""Folder of a run: its lock, the place of its checkpoints, and the run and checkpoint that `--resume` continues."""
