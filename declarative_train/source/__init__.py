"""YAML text -> Document: nodes that know where they were typed, merged by `extends`, `--with` and `--set`."""

from declarative_train.source.load import load

__all__ = ["load"]
