"""Pack `pretrained`."""

from declarative_train.core.packs import Pack

PACK = Pack()
