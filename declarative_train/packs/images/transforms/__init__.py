"""Transforms of pictures, one file per family."""
