"""Folder of a run: its lock, where its checkpoints are, and which run and checkpoint a resume continues."""
