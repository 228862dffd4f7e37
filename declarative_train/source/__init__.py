"""YAML text -> Document: nodes that keep their file, line and column, merged by `extends`, `--with` and `--set`."""

from declarative_train.source.load import load

__all__ = ["load"]
