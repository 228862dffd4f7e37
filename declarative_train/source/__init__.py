"""Reader of YAML recipes: from texts to a Document, a tree of nodes that know their file, line and column. Files and
options are merged by `extends`, `--with` and `--set`."""

from declarative_train.source.load import load

__all__ = ["load"]
