"""Transforms of images, one file per family."""
