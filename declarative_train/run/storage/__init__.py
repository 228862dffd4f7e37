"""Folder of a run: its lock, its checkpoints, and which run and checkpoint a resume continues."""
