"""Calibration of the planner's time predictions: the command, and the measurements of a machine."""
