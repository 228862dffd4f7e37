"""Commands `calibrate`, `fits`, `init`, `launch`, `lsp`, `mcp`, `sweep` and `verify`, which `dtrain` finds as a pack
(docs/packs.md)."""

from declarative_train.core.packs import Command, Pack

PACK = Pack(
    commands={
        "calibrate": Command(
            "measure this machine for predicted step times", "declarative_train.tools.calibrate.command"
        ),
        "fits": Command(
            "show whether a model fits on GPUs, which layouts do, time and cost", "declarative_train.tools.fits.command"
        ),
        "init": Command("write a first recipe", "declarative_train.tools.first_recipe.command"),
        "launch": Command(
            "write the files with which Slurm, Kubernetes, SkyPilot or ssh runs a recipe",
            "declarative_train.tools.launch.command",
        ),
        "lsp": Command("start a language server for editors", "declarative_train.tools.language_server.command"),
        "mcp": Command("start a server for coding agents", "declarative_train.tools.agents.command"),
        "sweep": Command(
            "run a recipe with each of the settings in its section `sweep`",
            "declarative_train.tools.sweep.command",
            needs_posix=True,
        ),
        "verify": Command(
            "compare one step in a recipe's mode with one process, or check a plan's reductions",
            "declarative_train.tools.verify.command",
            needs_posix=True,
        ),
    },
)
