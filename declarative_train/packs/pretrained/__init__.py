"""Pack `pretrained`: empty, since published models, adapters and storages are in the core (docs/packs.md)."""

from declarative_train.core.packs import Pack

PACK = Pack()
