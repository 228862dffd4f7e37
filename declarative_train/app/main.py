"""Command line: parse the arguments, run the command, return the exit code.

0 success; 1 the recipe has errors; 2 wrong use of the command; 3 the run failed; 75 stopped early, to be resumed; 130
interrupted; 143 terminated. Once a run trains, it handles SIGINT and SIGTERM itself (run/signals.py), so 130 and 143
mean that it made no step.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from types import ModuleType

from declarative_train.app.termination import TerminatedError, signals_raise
from declarative_train.app.usage_hints import Parser, hint_on_command, hint_on_options, hint_on_rest
from declarative_train.core.machine import most_open_files, shortage
from declarative_train.core.packs import Command, PackError, find_packs
from declarative_train.run.standard_streams import outlive_readers, write_any_character

COMMANDS = {
    "compare": "show the settings in which runs differ, and their metrics side by side",
    "data": "show a recipe's data as the model will see them; train a tokenizer",
    "doctor": "show what this machine can run: torch, GPUs, backends",
    "evaluate": "compute exact metrics of a trained model; show its mistakes and worst samples",
    "explain": "explain a diagnostic, with a bad and a good example",
    "find": "search keys, types, functions, commands, diagnostics, pages and words of other tools",
    "lint": "find mistakes in recipes, without starting anything",
    "list": "list every layer, block, loss, optimizer, source and section, with its keys",
    "plan": "show what a run would do: shapes, batches, ranks, memory, time",
    "predict": "predict new rows with a trained model",
    "run": "lint, plan and train a recipe",
    "runs": "list the runs in a folder, with their settings and results",
    "schema": "print the JSON schema of recipes",
    "show": "show the resolved recipe, each value with its origin",
    "status": "show how far a run is, its rate, its last checkpoint, its restarts and warnings",
    "tensorboard": "start TensorBoard on the runs",
    "trace": "show the path of the data through a model, or the epochs of a run",
}

LEAST_OPEN_FILES = 64  # with fewer, torch's processes cannot connect, and some of its code aborts
ON_POSIX = frozenset({"evaluate", "predict", "run"})  # they need fork, POSIX signals and file locks


@cache
def all_commands() -> dict[str, Command]:
    """Return the commands of dtrain and of its packs, by sorted names. Raises PackError."""
    found = {
        name: Command(summary, f"declarative_train.app.commands.{name}", name in ON_POSIX)
        for name, summary in COMMANDS.items()
    }
    for name, pack in find_packs().items():
        if twice := found.keys() & pack.commands.keys():
            raise PackError(f"the pack `{name}` has a command `{min(twice)}`, which exists already")
        found |= pack.commands
    return dict(sorted(found.items()))


def command_module(name: str) -> ModuleType:
    """Import and return the module of a command. It has the functions `add_arguments` and `run`."""
    return import_module(all_commands()[name].module)


class Version(argparse.Action):
    """Option `--version`. The version is read only when the option is given, because reading it is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> None:
        from declarative_train.core.machine import own_version

        print(f"dtrain {own_version()}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the arguments, run the command and return its exit code. `argv`: the arguments; None: those of the
    process."""
    words = list(sys.argv[1:] if argv is None else argv)
    write_any_character()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported (torch-facts, section 4)
    parser = Parser(prog="dtrain", description="Declarative training: a YAML recipe, checked, planned and run.")
    parser.add_argument("--version", action=Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(prog=parser.prog, dest="command", metavar="COMMAND", required=True)
    try:
        commands_by_name = all_commands()
    except PackError as error:
        print(f"dtrain: {error}", file=sys.stderr)
        return 3
    # Only the requested command is imported: the arguments of the others are not needed to run it. If it is the first
    # word, no list of the others is needed either.
    asked = next((word for word in words if word in commands_by_name), None)
    needs_posix = asked is not None and commands_by_name[asked].needs_posix
    if sys.platform == "win32" and needs_posix:
        print(f"dtrain: `{asked}` does not run on Windows itself; help: use WSL (`wsl --install`)", file=sys.stderr)
        return 3
    if needs_posix and (most := most_open_files()) < LEAST_OPEN_FILES:
        wanted = f"and a run opens at least {LEAST_OPEN_FILES}; help: `ulimit -n 1024`"
        print(f"dtrain: a process may open {most} files here, {wanted}", file=sys.stderr)
        return 3
    for name in [asked] if asked in words[:1] else commands_by_name:
        summary = commands_by_name[name].summary
        command = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
        if name == asked:
            module = command_module(name)
            module.add_arguments(command)
            command.hint = hint_on_options(asked, words)
            command.set_defaults(run=module.run)
    if words[:1] and words[0] not in commands_by_name:
        parser.hint = hint_on_command(words, list(commands_by_name))
    try:
        args, rest = parser.parse_known_args(words)
        if rest:
            named = commands.choices[args.command]
            named.hint = named.hint or hint_on_rest(args.command, rest, words)
            named.error(f"nothing here takes {' '.join(rest)}")
    except SystemExit as stop:
        return int(stop.code or 0)
    code: int = 0
    try:
        # A closed pipe (`dtrain lint bad.yaml | head -1`) changes neither the work nor the exit code. A run continues
        # without a console, but a plan that a full disk cuts off is an error.
        with outlive_readers() if asked == "run" else outlive_readers((BrokenPipeError,)), signals_raise():
            code = args.run(args)
        if sys.stdout is not None:  # a daemon may have none
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code
    except KeyboardInterrupt:
        print("dtrain: interrupted", file=sys.stderr)
        return 130
    except TerminatedError as terminated:
        print("dtrain: terminated", file=sys.stderr)
        return 128 + terminated.number
    except (ImportError, MemoryError, OSError, RuntimeError) as error:
        if (what := str(error) if isinstance(error, PackError) else shortage(error)) is None:
            raise
        print(f"dtrain: {what}", file=sys.stderr)
        return 3
    return code
