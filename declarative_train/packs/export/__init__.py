"""Pack `export`: write a trained model as files that other tools load."""

from declarative_train.core.packs import Command, Pack

PACK = Pack(
    commands={
        "export": Command(
            "write a trained model as files that other tools load",
            "declarative_train.packs.export.command",
            needs_posix=True,
        )
    },
    export="declarative_train.packs.export.export:export",
)
