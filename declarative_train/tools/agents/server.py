"""Server of the Model Context Protocol. Its tools for an agent are the commands of dtrain that change nothing.

Each call runs the command in a new process. So the result is the same as on the command line, torch's memory is freed
afterwards, and a call that takes too long can be stopped.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from declarative_train.core.machine import own_version

LIMIT_S = 300.0
MOST_LETTERS = 60_000  # limit of a result, because a plan of a large model is long and an agent pays for each letter
INSTRUCTIONS = (
    "Recipes are YAML files that dtrain checks, plans and trains. Use `find` for a key or type before you write one, "
    "`lint` after every change, `plan` or `fits` before a run. These tools change and start nothing: write recipes and "
    "run `dtrain run` yourself."
)


def make_server() -> MCPServer:
    """Return the MCP server, whose tools are the functions of dtrain for agents."""
    server = MCPServer("dtrain", instructions=INSTRUCTIONS, version=own_version(), log_level="ERROR")
    for tool in (lint, plan, fits, explain, find, describe, runs):
        server.tool()(tool)
    return server


async def lint(recipe: str, static: bool = False, settings: Mapping[str, str] | None = None) -> str:
    """Find mistakes in a recipe file, or in all recipes of a folder, without starting anything. Returns JSON: `counts`
    by severity, and `diagnostics`, each with code, path, line, message, help and fixes. `static`: check only syntax,
    keys and wiring, which takes a second. `settings`: values that replace those of the recipe, by dotted path, such as
    {"training.epochs": "3"}."""
    return await _run("lint", recipe, "--format", "json", *(["--static"] if static else []), *_set(settings))


async def plan(recipe: str, hardware: str | None = None, settings: Mapping[str, str] | None = None) -> str:
    """Show what a run of a recipe would do: shapes, batches, ranks, memory and time of a step. No GPU is needed.
    `hardware`: plan for other devices, such as 4xh100-sxm or 16x8xh100-sxm. `settings`: values that replace those of
    the recipe, by dotted path, such as {"training.epochs": "3"}."""
    return await _run("plan", recipe, *(["--for", hardware] if hardware else []), *_set(settings))


async def fits(
    target: str, gpu: str | None = None, count: int | None = None, task: str | None = None, length: int | None = None
) -> str:
    """Answer whether a recipe, or a published model in a folder with config.json, fits on GPUs, which layouts are
    fastest, and what to change. Returns JSON. `gpu`: such as h100; `task` of a published model: full, lora, qlora or
    pretrain; `length`: tokens of a sample."""
    options = {"--gpu": gpu, "--count": count, "--task": task, "--length": length}
    words = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return await _run("fits", target, "--json", *words)


async def explain(code: str) -> str:
    """Explain a diagnostic by its code or name, with a bad and a good example."""
    return await _run("explain", code)


async def find(word: str) -> str:
    """Search keys, types, functions, commands, diagnostics and pages of dtrain for a word; words of torch, Keras,
    transformers and Lightning lead to those of dtrain. Returns JSON."""
    return await _run("find", word, "--json")


async def describe(name: str) -> str:
    """Show the keys of a type (`linear`, `adamw`) or section (`training`), or list a kind (`layers`, `losses`)."""
    return await _run("list", name)


async def runs(folder: str) -> str:
    """List the runs in a folder, newest first, with their settings and results. Returns JSON."""
    return await _run("runs", folder, "--json")


def _set(settings: Mapping[str, str] | None) -> list[str]:
    return [word for path, value in (settings or {}).items() for word in ("--set", f"{path}={value}")]


async def _run(*words: str) -> str:
    """Run a command of dtrain in a new process. Return what it printed to standard output or, if that is empty, to
    standard error. `words`: the command and its arguments.

    Raises ToolError, which the client receives as the error of the call, if the first argument is an option or the
    command exceeds its time limit."""
    if len(words) > 1 and words[1].startswith("-"):
        raise ToolError(f"`{words[1]}` is an option; pass a name or a path")
    return await anyio.to_thread.run_sync(partial(_output, words), abandon_on_cancel=True)


def _output(words: Sequence[str]) -> str:
    command = [sys.executable, "-P", "-m", "declarative_train", *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ToolError(f"`dtrain {words[0]}` took more than {LIMIT_S:g} s") from None
    text = done.stdout if done.stdout.strip() else done.stderr
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS]}\n... ({len(text) - MOST_LETTERS:,} more letters)"
    return text
