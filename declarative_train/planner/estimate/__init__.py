"""Estimates for a layout from shapes alone: memory, operations, bytes on each link, the time of a step."""
