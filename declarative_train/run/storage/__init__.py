"""Folder of a run: its lock, the location of its checkpoints, and the choice of the run and checkpoint with which a
resumed run continues."""
