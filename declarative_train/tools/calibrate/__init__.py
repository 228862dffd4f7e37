"""Calibration of the time model: the command, and the measurements of a machine."""
