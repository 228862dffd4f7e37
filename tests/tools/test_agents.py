"""`dtrain mcp`: a client of the Model Context Protocol calls each tool; the instructions for agents are true."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import ClientSession, StdioServerParameters, stdio_client

from declarative_train.app.main import main

ROOT = Path(__file__).parent.parent.parent
RECIPE = "recipes/digits_mlp.yaml"
LIMIT_S = 300


def call(*calls: tuple[str, Mapping[str, Any]]) -> list[tuple[bool, str]]:
    """Return (whether it failed, text) of each call of a tool, on one server in a process of its own."""

    async def run() -> list[tuple[bool, str]]:
        words = ["-P", "-m", "declarative_train", "mcp"]
        server = StdioServerParameters(command=sys.executable, args=words, cwd=str(ROOT), env=dict(os.environ))
        with anyio.fail_after(LIMIT_S):
            async with stdio_client(server) as streams, ClientSession(*streams) as session:
                await session.initialize()
                found = {each.name for each in (await session.list_tools()).tools}
                assert found == {"describe", "explain", "find", "fits", "lint", "plan", "runs"}
                answers = [await session.call_tool(name, dict(arguments)) for name, arguments in calls]
        return [(bool(each.is_error), each.content[0].text) for each in answers]  # type: ignore[union-attr]

    return anyio.run(run)


def test_an_agent_looks_a_key_up_and_checks_a_recipe(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text((ROOT / RECIPE).read_text().replace("out_features", "out_feature"))
    found, linted, clean, refused = call(
        ("find", {"word": "learning_rate"}),
        ("lint", {"recipe": str(broken), "static": True}),
        ("lint", {"recipe": RECIPE, "static": True, "settings": {"training.epochs": "2"}}),
        ("explain", {"code": "--help"}),
    )
    assert "training.optimizer" in json.loads(found[1])["hint"]
    assert "out_feature" in json.loads(linted[1])["diagnostics"][0]["message"]
    assert json.loads(clean[1])["diagnostics"] == []
    assert refused[0]
    assert "is an option" in refused[1]


@pytest.mark.long
def test_every_tool_answers(tmp_path: Path) -> None:
    answers = call(
        ("plan", {"recipe": RECIPE, "hardware": "2xh100-sxm", "settings": {"parallelism": "ddp"}}),
        ("fits", {"target": RECIPE, "gpu": "h100", "count": 1}),
        ("describe", {"name": "linear"}),
        ("explain", {"code": "P001"}),
        ("runs", {"folder": str(tmp_path)}),
    )
    assert [failed for failed, _ in answers] == [False] * 5
    plan, fits, linear, explained, runs = (text for _, text in answers)
    assert "ddp" in plan
    assert json.loads(fits)
    assert "out_features" in linear
    assert "ranks-do-not-divide" in explained
    assert json.loads(runs) == []


def test_the_instructions_are_a_skill(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "--skill"]) == 0
    assert re.match(r"---\nname: dtrain\ndescription: .+\n---\n", capsys.readouterr().out)
