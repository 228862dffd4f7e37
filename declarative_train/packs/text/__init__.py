"""Pack `text`."""

from declarative_train.core.packs import Pack

PACK = Pack()
